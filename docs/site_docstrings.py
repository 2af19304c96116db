"""An extension of griffe: our docstrings as Markdown, for the API pages of `make docs`.

A paragraph of aligned columns becomes a code block; a paragraph of `name: meaning.` entries becomes
a list. The docstrings themselves stay short to read in the source.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ENTRY = re.compile(r"(?:^|(?<=[.;:]\s))([a-z][\w.]*(?:, [a-z][\w.]*)*): ")
COLUMNS = re.compile(r"^\S.*?\s{2,}\S")


class Docstrings(griffe.Extension):
    """Rewrites the text of every docstring once it was loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with its tables fenced and its entries as list items."""
    summary, *paragraphs = text.split("\n\n")
    return "\n\n".join([summary, *map(_paragraph, paragraphs)])


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    if all(line.startswith("    ") for line in lines):
        return text
    if sum(bool(COLUMNS.match(line.strip())) for line in lines) >= 2:
        return "\n".join(["```text", *lines, "```"])
    joined = " ".join(line.strip() for line in lines)
    if not ENTRY.match(joined):
        return text
    entries = ENTRY.split(joined)[1:]
    names, meanings = entries[::2], entries[1::2]
    return "\n".join(
        f"- `{name}`: {meaning.strip()}" for name, meaning in zip(names, meanings, strict=True)
    )
