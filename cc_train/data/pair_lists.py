"""Lists and folders of image pairs that are to be captioned."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cc_prep.errors import UserError

BEFORE, AFTER = "before", "after"
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


def read_pairs(place: Path) -> Iterator[tuple[str, str]]:
    """The paths of before and after of each pair that a list or a folder names.

    place: a CSV with the columns `before` and `after`, or JSON lines (.jsonl) with these keys;
    paths are relative to the file. Or a folder with `before/NAME` and `after/NAME`, or with
    `NAME_before.*` and `NAME_after.*`. Raises UserError for anything else, and for an empty list.
    """
    if place.is_dir():
        yield from _of_folder(place)
        return
    try:
        text = place.read_text(encoding="utf-8-sig")
        if place.suffix == ".jsonl":
            rows: list[Any] = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = list(csv.DictReader(io.StringIO(text)))
        pairs = [(str(place.parent / row[BEFORE]), str(place.parent / row[AFTER])) for row in rows]
    except (OSError, ValueError) as error:
        raise UserError(f"{place}: {error}", "Give a CSV or JSON-lines file") from None
    except (KeyError, TypeError):
        raise UserError(f"{place}: no columns before and after", "Name the columns so") from None
    if not pairs:
        raise UserError(f"{place}: lists no pairs", "Add a line a pair below the header")
    yield from pairs


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
