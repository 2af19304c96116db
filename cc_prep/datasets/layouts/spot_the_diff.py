"""Spot-the-Diff (Jhamtani and Berg-Kirkpatrick, EMNLP 2018) as its authors publish it.

    annotations/{train,val,test}.json   [{"img_id": "76", "sentences": […]}]
    resized_images/76.png, 76_2.png     before and after (also `images/`, also .jpg)

An image pair may have several rows, one an annotator; they are one pair here. Each sentence is a
caption (the single-change setting), or each row is, its sentences joined (`captions.join`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cc_prep import storage
from cc_prep.datasets.layouts import annotation_files
from cc_prep.datasets.layouts.annotation_files import Images
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import CHANGE, ImagePair
from cc_prep.words import counted

LAYOUT = "Spot-the-Diff"
WANTED = "Put Spot-the-Diff there (annotations/, resized_images/), or name its folder with --root"
FOLDERS = ("resized_images", "images")
ANNOTATIONS = ("annotations/train.json", "annotations/test.json", "train.json", "test.json")


def parts(root: str) -> dict[str, bool]:
    """Whether each part of the layout is there."""
    return annotation_files.parts(root, [[f"{name}/" for name in FOLDERS], ANNOTATIONS])


def pairs(manifest: Manifest, split: str) -> list[ImagePair]:
    """The pairs of a split in the order of their first rows."""
    root = manifest.root
    captions: dict[str, list[str]] = {}
    for row in _rows(root, split):
        sentences = [s.strip() for s in row["sentences"] if s.strip()]
        of_pair = captions.setdefault(str(row["img_id"]), [])
        of_pair += (
            [". ".join(s.rstrip(".") for s in sentences)]
            if manifest.captions.join and sentences
            else sentences
        )
    folder = annotation_files.first_folder(root, FOLDERS, LAYOUT)
    images = Images(root, [folder])
    return [
        ImagePair(
            dataset=manifest.name,
            split=split,
            id=id,
            kind=CHANGE,
            before=images.of(f"{folder}/{id}"),
            after=images.of(f"{folder}/{id}_2"),
            captions=tuple(sentences),
            image_id=f"{id}.png",
        )
        for id, sentences in captions.items()
    ]


def faults(manifest: Manifest) -> list[str]:
    """Empty sentences, pairs in two splits, and how many pairs several annotators described."""
    problems: list[str] = []
    split_of: dict[str, str] = {}
    for split in manifest.splits:
        rows = _rows(manifest.root, split)
        empty = sum(not s.strip() for row in rows for s in row["sentences"])
        if empty:
            problems.append(f"{split}: {counted(empty, 'empty sentence')}, left out")
        counts = Counter(str(row["img_id"]) for row in rows)
        several = sum(count > 1 for count in counts.values())
        if several:
            problems.append(f"{split}: {several} pairs have several rows, taken as one pair each")
        for id in counts:
            if split_of.setdefault(id, split) != split:
                problems.append(f"{id} is in {split_of[id]} and in {split}")
    return problems


def _rows(root: str, split: str) -> list[dict[str, Any]]:
    folder = storage.join(root, annotation_files.first_folder(root, ("annotations", "."), LAYOUT))
    path = annotation_files.split_file(folder, split)
    rows: list[dict[str, Any]] = annotation_files.read_json(path, list, LAYOUT)
    checks = {"img_id": annotation_files.is_id, "sentences": annotation_files.are_captions}
    annotation_files.check_rows(path, rows, checks)
    if not rows:
        raise UserError(f"{path}: no rows", "Fetch it again")
    return rows
