"""The two lists that a run reads: which tests are nearest to a module, and what cannot matter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """tests: the files nearest to a module. slow: those that only survivors of these have to pass.

    Both are paths from the root.
    """

    tests: tuple[str, ...]
    slow: tuple[str, ...] = ()


def modules() -> dict[str, Row]:
    """Rows by the module's path from the root."""
    rows: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "modules.yaml").read_text())
    return {
        module: Row(tuple(row["tests"]), tuple(row.get("slow", ()))) for module, row in rows.items()
    }


def equivalent() -> dict[tuple[str, str, str], str]:
    """Why a mutant cannot matter, by (module, line, what it becomes)."""
    entries_of: dict[str, list[dict[str, str]]] = yaml.safe_load(
        (HERE / "equivalent.yaml").read_text()
    )
    return {
        (module, entry["line"], entry["becomes"]): entry["because"]
        for module, entries in (entries_of or {}).items()
        for entry in entries
    }


def stale(known: Iterable[tuple[str, str, str]], root: Path) -> list[tuple[str, str]]:
    """Entries of `equivalent` whose line is not in its module any more: (module, line)."""
    return [
        (module, line)
        for module, line, _ in known
        if line.partition(" ⏎ ")[0]
        not in {text.strip() for text in (root / module).read_text().splitlines()}
    ]
