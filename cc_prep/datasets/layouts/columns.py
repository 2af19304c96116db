"""Where in a row of a table a value is, which others call and nest otherwise than we do.

image_before             the value of a column
image[0]                 the first of a list
conversations[1].value   a value of an object in a list
sentences[].raw          that of each object in a list
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

PART = re.compile(r"\[([0-9]{0,6})\]|\.([^.\[]+)")


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """The value at a path; None where there is none.

    Args:
        values: Of a row, by column. A name that is there as it stands is that column, whatever
            marks are in it.
    """
    if path in values:
        return values[path]
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    found, is_list = [values.get(name)], False
    at = len(name)
    while at < len(path):
        part = PART.match(path, at)
        if part is None:
            return None
        at = part.end()
        is_list = is_list or part[1] == ""
        found = [inner for value in found for inner in _within(value, part[1], part[2])]
    if is_list:
        return [value for value in found if value is not None]
    return found[0] if found else None


def name_of(path: str) -> str:
    """The column in which a path begins."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _within(value: Any, place: str | None, key: str | None) -> Iterator[Any]:
    if key is not None:
        yield value.get(key) if isinstance(value, Mapping) else None
    elif isinstance(value, list | tuple):
        if place == "":
            yield from value
        elif int(place or 0) < len(value):
            yield value[int(place or 0)]
