"""Lists and folders of image pairs that are to be captioned."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import table
from cc_prep.datasets.layouts.annotation_files import by_stem
from cc_prep.errors import UserError

LISTS = (
    "Give a CSV whose first line is before,after, or JSON lines (.jsonl) with one object per pair, "
    'such as {"before": "a.png", "after": "b.png"}'
)
BEFORE, AFTER = "before", "after"


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """The paths of before and after of each pair that a list or a folder names.

    path: a CSV with the columns `before` and `after`, or JSON lines (.jsonl) with these keys;
    paths are relative to the file, URLs are used as they are. Or a folder with `before/NAME` and
    `after/NAME`, or with `NAME_before.*` and `NAME_after.*`. Raises UserError for anything else,
    and for an empty list.
    """
    if path.is_dir():
        yield from _of_folder(path)
        return
    if not path.exists():
        raise UserError(f"{path}: no such file or folder", "Check the path")
    if path.suffix == ".json":
        raise UserError(f"{path}: neither a CSV nor JSON lines", LISTS)
    try:
        if path.suffix == ".jsonl":
            rows: list[Any] = storage.read_json_lines(str(path))
        else:
            rows = table.csv_rows(storage.read_bytes(str(path)).decode("utf-8-sig"))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: {error}", LISTS) from None
    if not rows:
        raise UserError(f"{path}: lists no pairs", LISTS)
    if not table.has_columns(rows[0]):
        what = f"no columns before and after, but {table.columns_of(rows[0])}"
        raise UserError(f"{path}: {what}", LISTS)
    yield from [_of_row(path, number, row) for number, row in enumerate(rows, start=1)]


def _of_row(path: Path, number: int, row: Any) -> tuple[str, str]:
    """The paths of a row, stripped of blanks, by the rules of the layout `table`; URLs and absolute
    paths are used as they are."""
    cells = [row.get(side) if isinstance(row, dict) else None for side in (BEFORE, AFTER)]
    names = [cell.strip() if isinstance(cell, str) else "" for cell in cells]
    if not all(names):
        raise UserError(f"{path}: pair {number} lacks before or after", "Give both images of it")
    before, after = (name if "://" in name else str(path.parent / name) for name in names)
    return before, after


def _of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    sides = [folder / side for side in (BEFORE, AFTER)]
    if all(side.is_dir() for side in sides):
        names = [_images(side) for side in sides]
    else:
        images = _images(folder)
        names = [
            {n.removesuffix(f"_{side}"): images[n] for n in images if n.endswith(f"_{side}")}
            for side in (BEFORE, AFTER)
        ]
    alone = names[0].keys() ^ names[1].keys()
    if alone or not names[0]:
        what = f"{min(alone)} has no counterpart" if alone else "no pairs in it"
        raise UserError(
            f"{folder}: {what}", "before/NAME and after/NAME, or NAME_before.* and NAME_after.*"
        )
    for name in sorted(names[0]):
        yield names[0][name], names[1][name]


def _images(folder: Path) -> dict[str, str]:
    """The images of a folder by name without suffix, by the rules of the layout `folders`."""
    files = storage.list_files(str(folder))
    return {stem: str(folder / name) for stem, name in by_stem(files).items()}
