"""Settings of a run as cards, pages and rows of the zoo show them: without folders."""

from __future__ import annotations

import re
from typing import Any

from cc_prep.redaction import values_without_folders

# The settings that name a file or a folder of weights or of words; a name without / stays.
FILES = ("vocabulary", "vqgan", "weights", "backbone_weights", "tokenizer")


def without_folders(settings: Any) -> Any:
    """The settings with each absolute path, and the path of each of FILES, cut to its last part.

    Addresses such as `s3://bucket/w.pt` stay.
    """
    return _cut(values_without_folders(settings))


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        name: _last_part(inner) if name in FILES and isinstance(inner, str) else _cut(inner)
        for name, inner in value.items()
    }


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return path if "://" in path or not parts else parts[-1]
