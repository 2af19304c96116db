"""Image-Editing-Request (Tan et al., ACL 2019) as its authors publish it.

    {train,valid,test}.json   [{"img0", "img1", "sents", "uid"}], file names with their endings
    images/                   all images

The split `val` reads `valid.json`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cc_prep.datasets.layouts import annotation_files
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, ImagePair
from cc_prep.words import counted

LAYOUT = "Image-Editing-Request"
WANTED = "Put Image-Editing-Request there (*.json, images/), or name its folder with --root"


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return annotation_files.parts(
        root, [["images/"], ["train.json", "valid.json", "val.json", "test.json"]]
    )


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split in the order of the file."""
    annotation_files.first_folder(manifest.root, ["images"], LAYOUT)
    return [
        ImagePair(
            dataset=manifest.name,
            split=split,
            id=str(row["uid"]),
            kind=CHANGE,
            before=f"images/{row['img0']}",
            after=f"images/{row['img1']}",
            captions=tuple(sentence.strip() for sentence in row["sents"] if sentence.strip()),
            image_id=str(row["uid"]),
        )
        for row in _rows(manifest.root, split)
    ]


def faults(manifest: Manifest) -> list[str]:
    """Empty sentences, ids twice or in two splits, and images that splits share."""
    problems: list[str] = []
    split_of: dict[str, str] = {}
    image_of: dict[str, str] = {}
    for split in manifest.splits:
        rows = _rows(manifest.root, split)
        empty = sum(not s.strip() for row in rows for s in row["sents"])
        if empty:
            problems.append(f"{split}: {counted(empty, 'empty sentence')}, left out")
        counts = Counter(str(row["uid"]) for row in rows)
        problems += [f"{split}: {id} is there {n} times" for id, n in counts.items() if n > 1]
        for id in counts:
            if split_of.setdefault(id, split) != split:
                problems.append(f"{id} is in {split_of[id]} and in {split}")
        shared = {row["img0"] for row in rows if image_of.get(row["img0"], split) != split}
        if shared:
            problems.append(f"{split}: {len(shared)} before images are in another split too")
        image_of |= {row["img0"]: split for row in rows}
    return problems


def _rows(root: str, split: str) -> list[dict[str, Any]]:
    path = annotation_files.split_file(root, split)
    rows: list[dict[str, Any]] = annotation_files.read_json(path, list, LAYOUT)
    is_text = lambda value: isinstance(value, str) and bool(value)  # noqa: E731
    annotation_files.check_rows(
        path,
        rows,
        {
            "uid": annotation_files.is_id,
            "img0": is_text,
            "img1": is_text,
            "sents": annotation_files.are_captions,
        },
    )
    return rows
