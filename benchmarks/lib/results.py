"""A file of results: a line of JSON for each training that is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# The lines by training and seed.
Results = dict[str, dict[int, dict[str, Any]]]


def stored(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, of which there may be none yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def append(file: Path, line: Mapping[str, Any]) -> None:
    """Adds a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def digest(content: object, length: int = 12) -> str:
    """Names what JSON can hold, in so many digits."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:length]
