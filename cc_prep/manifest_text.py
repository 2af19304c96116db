"""Manifests as text: values put into one, sections of two joined, comments kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import yaml


def sections(text: str) -> list[str]:
    """The top-level keys of a manifest, each with its lines; what is above the first is left out.

    Comments above a key are at the end of the section before it.
    """
    return _parts(text)[1:]


def _parts(text: str) -> list[str]:
    """What is above the first top-level key, and each key with its lines."""
    return re.split(r"(?m)^(?=\w)", text)


def key_of(section: str) -> str:
    """The key with which a section begins."""
    return section.partition(":")[0]


def joined(data: str, work: str, of_data: Collection[str]) -> str:
    """The sections about the data of one manifest's text, and all others of another's."""
    ours = [one for one in sections(data) if key_of(one) in of_data]
    return "".join([*ours, *(one for one in sections(work) if key_of(one) not in of_data)])


def with_values(text: str, values: Mapping[str, Any]) -> str:
    """A manifest's text with other values of top-level keys.

    A key that is new comes after `splits`. All else stays as it is, comments too.
    """
    head, *parts = _parts(text)
    for key, value in values.items():
        line = f"{key}: {flow(value)}\n"
        places = [i for i, part in enumerate(parts) if key_of(part) == key]
        if places:
            parts[places[0]] = line + _comment_at_end(parts[places[0]])
        else:
            after = [i for i, part in enumerate(parts) if key_of(part) == "splits"]
            parts.insert(after[0] + 1 if after else len(parts), line)
    return head + "".join(parts)


def _comment_at_end(section: str) -> str:
    """What a section has below its value: comments of the key after it."""
    lines = section.splitlines(keepends=True)
    start = len(lines)
    while start > 1 and re.match(r"#|\s*$", lines[start - 1]):
        start -= 1
    return "".join(lines[start:])


def flow(value: Any) -> str:
    """A value in YAML on one line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{quoted(key)}: {flow(one)}' for key, one in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str) -> str:
    """The text as a value in YAML, in quotes where it would be read as a number or a date."""
    is_word = re.fullmatch(r"([A-Za-z/]|\.{1,2}/)[\w./-]*", text)  # 1e3 is text to PyYAML alone
    if is_word and yaml.safe_load(text) == text:
        return text
    scalar: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf"))
    return scalar.strip()
