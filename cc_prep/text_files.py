"""Text files that users write: UTF-8, JSON lines, and how messages name a place in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cc_prep import strict_json
from cc_prep.errors import UserError, first_line

ONE_A_LINE = 'Write one object on each line, such as {"before": "a.png", "after": "b.png"}'


def at_line(path: str, number: int) -> str:
    """The place of a line of a text file in messages.

    Args:
        number: As an editor shows it, from 1.
    """
    return f"{path}, line {number}"


def at_row(path: str, number: int, id: object = None) -> str:
    """The place of a row of a table, or of an item of a JSON list, in messages.

    Args:
        number: From 1.
        id: Of what the row is about, where it is known.
    """
    return f"{path}, row {number}" + (f" (id {id})" if id not in (None, "") else "")


def decode(data: bytes, path: str) -> str:
    """The text of a file, with or without the mark that Windows puts before UTF-8.

    Raises UserError that names the line of the first byte that is not UTF-8.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_utf8(path, error) from None


def not_utf8(path: str, error: UnicodeDecodeError) -> UserError:
    """The error of a file whose bytes are no UTF-8, with the line of the first of them."""
    number = error.object[: error.start].count(b"\n") + 1
    return UserError(f"{path}: is not UTF-8 text (line {number})", "Save it as UTF-8")


def json_lines(text: str, path: str) -> Iterator[tuple[int, Any]]:
    """The value of each line of JSON lines but the empty ones, and the number of its line, from 1.

    Only a newline ends a line: `str.splitlines` also breaks at characters that captions may hold,
    such as U+2028. Raises UserError, also for one JSON list in place of lines.
    """
    if text.lstrip().startswith("["):
        raise UserError(f"{path}: is a JSON list, not JSON lines", ONE_A_LINE)
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield number, strict_json.loads(line)
        except json.JSONDecodeError as error:
            what = f"not JSON ({error.msg} at column {error.colno})"
            raise UserError(f"{at_line(path, number)}: {what}", ONE_A_LINE) from None
        except ValueError as error:  # a number of 5,000 digits; 100,000 brackets; a key twice
            what = f"not JSON ({first_line(error)})"
            raise UserError(f"{at_line(path, number)}: {what}", ONE_A_LINE) from None
