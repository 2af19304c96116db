"""Trainings of many captioners: our commands, their figures, results that are kept in a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

Results = dict[str, dict[int, dict[str, Any]]]


def figures(scores: dict[str, Any]) -> dict[str, float]:
    """What the tables show, × 100."""
    facts = scores["facts"]
    shares = {name: 100 * share["share"] for name, share in facts["shares"].items()}
    told_apart = 100 * facts["told apart"]["share"]
    of_masks = {}
    if "masks" in scores:
        of_masks = {name: scores["masks"][name] for name in ("mIoU-change", "false alarms")}
    if "faithfulness" in scores:
        faithful = scores["faithfulness"]
        of_masks |= {
            name: 100 * faithful[key]["share"]
            for name, key in (
                ("faithful", "predicted masks"),
                ("faithful, true masks", "true masks"),
                ("faithful, others' masks", "masks of other pairs"),
            )
        }
        both = faithful["contradictions"].values()
        pairs = sum(one["pairs"] for one in both)
        of_masks["contradictions"] = 100 * sum(one["count"] for one in both) / max(1, pairs)
    cider = scores["groups"]["total"]["CIDEr"]
    return {"told apart": told_apart, **shares, "CIDEr": cider, **of_masks}


def read(
    file: Path, conditions: str, variants: Mapping[str, Sequence[str]] | None = None
) -> Results:
    """The results under these conditions, by training and seed.

    variants: the settings of trainings by name. A result of other settings is left out, and so is
    one of a variant that is no more; of other names, captioners beside them are taken.
    """
    results: Results = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        entry = json.loads(line)
        if entry["conditions"] != conditions:
            continue
        if variants is not None and not _counts(entry, variants.get(entry["training"])):
            continue
        results.setdefault(entry["training"], {})[int(entry["seed"])] = entry
    return results


def _counts(entry: Mapping[str, Any], settings: Sequence[str] | None) -> bool:
    if settings is None:
        return "beside" in entry
    return bool(entry.get("settings") == [*settings])


def append(file: Path, line: dict[str, Any]) -> None:
    """Adds a result."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps(line) + "\n")


def replace(page: Path, mark: str, text: str) -> None:
    """Puts a table on a page, between `<!-- mark -->` and the next `<!-- end -->`."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    head, separator, rest = page.read_text().partition(begin)
    if not separator:
        sys.exit(f"{page}: has no {begin.strip()}")
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{begin}{text}\n{end}{tail}")


def sets(*settings: str) -> list[object]:
    """The options that set them."""
    return [part for setting in settings for part in ("--set", setting)]


def run(program: str, *arguments: object) -> None:
    """Runs one of our commands with one thread. Ends the program where it fails."""
    command = [str(BIN / program), *map(str, arguments)]
    if subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")
