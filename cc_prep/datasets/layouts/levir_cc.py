"""LEVIR-CC (Liu et al., TGRS 2022): satellite images, some of which nothing has changed in.

    images/{train,val,test}/A/train_000016.png   before; B: after (256 × 256)
    LevirCCcaptions.json   {"images": [{"filename", "split", "changeflag", "sentences": [{"raw"}]}]}

`changeflag` 0 makes a pair one without change.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files
from cc_prep.datasets.layouts.annotation_files import Images, first_folder
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, NO_CHANGE, ImagePair

LAYOUT = "LEVIR-CC"
FILE = "LevirCCcaptions.json"
WANTED = f"Put LEVIR-CC there ({FILE}, images/), or name its folder with --root"


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return annotation_files.parts(root, [["images/"], [FILE]])


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split in the order of the file."""
    sides = [first_folder(manifest.root, [f"images/{split}/{s}"], LAYOUT) for s in "AB"]
    images = Images(manifest.root, sides)
    image_pairs = []
    for row in _rows(manifest.root):
        if row["split"] == split:
            stem = row["filename"].rpartition(".")[0] or row["filename"]
            before, after = (images.of(f"{side}/{stem}") for side in sides)
            sentences = [str(one["raw"]).strip() for one in row["sentences"]]
            image_pairs.append(
                ImagePair(
                    dataset=manifest.name,
                    split=split,
                    id=stem,
                    kind=CHANGE if row["changeflag"] else NO_CHANGE,
                    before=before,
                    after=after,
                    captions=tuple(one for one in sentences if one),
                    image_id=row["filename"],
                )
            )
    return image_pairs


def faults(manifest: Manifest) -> list[str]:
    """Files twice, empty sentences, and splits that no manifest split names."""
    rows = _rows(manifest.root)
    counts = Counter((row["split"], row["filename"]) for row in rows)
    problems = [
        f"{FILE}: {name} of {split} is there twice" for (split, name), n in counts.items() if n > 1
    ]
    empty = sum(not str(one["raw"]).strip() for row in rows for one in row["sentences"])
    if empty:
        problems.append(f"{FILE}: {empty} empty sentences, left out")
    unknown = {row["split"] for row in rows} - set(manifest.splits)
    return problems + [f"{FILE}: split {split} is not in the manifest" for split in sorted(unknown)]


def _rows(root: str) -> list[dict[str, Any]]:
    place = storage.join(root, FILE)
    entries: list[dict[str, Any]] = annotation_files.read_json(place, dict, LAYOUT).get("images")
    rows = entries if isinstance(entries, list) else []
    checks = {
        "filename": lambda value: isinstance(value, str) and bool(value),
        "split": lambda value: isinstance(value, str),
        "changeflag": lambda value: value in (0, 1),
        "sentences": lambda value: (
            isinstance(value, list) and all(isinstance(one, dict) and "raw" in one for one in value)
        ),
    }
    annotation_files.check_rows(place, rows, checks)
    return rows
