"""Lists and folders of image pairs that are to be captioned."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import table
from cc_prep.errors import UserError

LISTS = (
    "Give a CSV whose first line is before,after, or JSON lines (.jsonl) with an object a pair, "
    'such as {"before": "a.png", "after": "b.png"}'
)
BEFORE, AFTER = "before", "after"
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_pairs(place: Path) -> Iterator[tuple[str, str]]:
    """The paths of before and after of each pair that a list or a folder names.

    place: a CSV with the columns `before` and `after`, or JSON lines (.jsonl) with these keys;
    paths are relative to the file, URLs stand as they are. Or a folder with `before/NAME` and
    `after/NAME`, or with `NAME_before.*` and `NAME_after.*`. Raises UserError for anything else,
    and for an empty list.
    """
    if place.is_dir():
        yield from _of_folder(place)
        return
    if not place.exists():
        raise UserError(f"{place}: no such file or folder", "Look at the path")
    if place.suffix == ".json":
        raise UserError(f"{place}: neither a CSV nor JSON lines", LISTS)
    try:
        text = place.read_text(encoding="utf-8-sig")
        if place.suffix == ".jsonl":
            rows: list[Any] = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = table.csv_rows(text)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{place}: {error}", LISTS) from None
    if not rows:
        raise UserError(f"{place}: lists no pairs", LISTS)
    if not table.has_columns(rows[0]):
        what = f"no columns before and after, but {table.columns_of(rows[0])}"
        raise UserError(f"{place}: {what}", LISTS)
    yield from [_of_row(place, number, row) for number, row in enumerate(rows, start=1)]


def _of_row(place: Path, number: int, row: Any) -> tuple[str, str]:
    """The paths of a row; those that are remote or absolute stand as they are."""
    names = [row.get(side) if isinstance(row, dict) else None for side in (BEFORE, AFTER)]
    if not all(isinstance(name, str) and name for name in names):
        raise UserError(f"{place}: pair {number} lacks before or after", "Give both images of it")
    before, after = (
        name if storage.is_remote(name) else str(place.parent / name) for name in map(str, names)
    )
    return before, after


def _of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    sides = [folder / side for side in (BEFORE, AFTER)]
    if all(side.is_dir() for side in sides):
        names = [
            {p.stem: p for p in side.iterdir() if p.suffix.lower() in IMAGES} for side in sides
        ]
    else:
        paths = [path for path in folder.iterdir() if path.suffix.lower() in IMAGES]
        names = [
            {p.stem[: -len(side) - 1]: p for p in paths if p.stem.endswith(f"_{side}")}
            for side in (BEFORE, AFTER)
        ]
    alone = names[0].keys() ^ names[1].keys()
    if alone or not names[0]:
        what = f"{min(alone)} has no counterpart" if alone else "no pairs in it"
        raise UserError(
            f"{folder}: {what}", "before/NAME and after/NAME, or NAME_before.* and NAME_after.*"
        )
    for name in sorted(names[0]):
        yield str(names[0][name]), str(names[1][name])
