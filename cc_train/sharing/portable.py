"""Settings as an exported network carries them: without folders of the machine of its training.

A folder there names users and projects, and means nothing on another machine. A run's settings name
files by these keys, at any depth; all other texts, such as prompts, stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

PATHS = ("backbone_weights", "vocabulary", "vqgan", "weights")


def portable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with each path cut to its last part, relative ones too; names stay."""
    return {
        key: last_part(value) if key in PATHS and isinstance(value, str) else _inner(value)
        for key, value in settings.items()
    }


def _inner(value: Any) -> Any:
    if isinstance(value, Mapping):
        return portable(value)
    if isinstance(value, (list, tuple)):
        return [_inner(one) for one in value]
    return value


def last_part(path: str) -> str:
    """The name of a file or folder, of a path or URL with either kind of slash."""
    parts = [part for part in re.split(r"[/\\]", path) if part]
    return parts[-1] if parts else path
