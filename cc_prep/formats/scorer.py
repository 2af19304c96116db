"""Files that SCORER's public code reads, and with it DUDA's, DIRL's and MEDIC's.

DIR/features/<image file>.npy       float32 [channels, rows, columns] of the images before
DIR/sc_features/<image file>.npy    of the changed images; DIR/nsc_features/… of the distractors
DIR/labels.h5                       captions in numbers, by the number at the end of an image's name
DIR/vocab.json                      {word: id}
DIR/splits.json                     {split: [number, …]}

The public code takes a number for the place of an image in the sorted folder as well, so numbers
have no gaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, training_shards
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.progress import Progress, no_progress
from cc_prep.records import NO_CHANGE

MARKS = ("<NULL>", "<UNK>", "<START>", "<END>")
NULL, UNK, START, END = range(4)
LABELS, VOCABULARY, SPLITS = "labels.h5", "vocab.json", "splits.json"
BEFORE, CHANGED, UNCHANGED = "features", "sc_features", "nsc_features"


def words_of(caption: str) -> list[str]:
    """The words of a caption: a blank is put before `;` and `,`, `?` and `.` go, nothing is
    lower-cased. Several blanks make one, where the public code makes a word of no letters.
    """
    for mark in ";,":
        caption = caption.replace(mark, f" {mark}")
    for mark in "?.":
        caption = caption.replace(mark, "")
    return [word for word in caption.split(" ") if word]


def vocabulary(captions: Iterable[str], min_count: int = 1) -> list[str]:
    """The marks, then the words that occur so often, in the order of their characters' numbers."""
    counts: dict[str, int] = {}
    for caption in captions:
        for word in words_of(caption):
            counts[word] = counts.get(word, 0) + 1
    frequent = {word for word, count in counts.items() if count >= min_count}
    return [*MARKS, *sorted(frequent - set(MARKS))]


def export_folder(
    folder: str, target: str, end_mark: bool = True, progress: Progress = no_progress
) -> dict[str, int]:
    """`export` of all finished training shards in a folder, in the order of their names."""
    record = provenance.read(folder)
    assert record is not None, "verification.find_one has seen it"
    names = [training_shards.FORMAT.file(shard) for shard in sorted(record["shards"])]
    paths = [storage.join(folder, name) for name in names]
    return export(paths, target, end_mark, progress)


def export(
    shards: Iterable[str], target: str, end_mark: bool = True, progress: Progress = no_progress
) -> dict[str, int]:
    """Writes the pairs of training shards with features; how many images and pairs.

    Args:
        shards: Their paths.
        target: A folder without an earlier export; the files appear there when all are complete.
        end_mark: Captions end with <END>, as SCORER's; DUDA's do not.

    Raises:
        UserError: For pairs without features, for images without numbers or with gaps between them,
            and for two images or two splits of one number.
    """
    target = storage.local_folder(target)
    _check_target(target)
    captions: dict[str, dict[int, list[str]]] = {CHANGED: {}, UNCHANGED: {}}
    numbers, pairs, paths = _Numbers(), 0, list(shards)
    storage.remove_temporaries(target, storage.A_DAY)
    with storage.write_folder(target) as folder:
        for done, path in enumerate(paths, 1):
            for sample in training_shards.read(path):
                after = UNCHANGED if sample.meta.get("kind") == NO_CHANGE else CHANGED
                number = number_of(sample, "before")
                listed = [str(caption) for caption in sample.meta.get("captions") or []]
                captions[after].setdefault(number, []).extend(listed)
                _write_features(folder, sample, after, number, numbers)
                pairs += 1
            progress(done, len(paths))
        splits = numbers.by_split()
        _check_gaps(splits)
        words = vocabulary(
            caption
            for of_kind in captions.values()
            for number in splits.get("train", ())
            for caption in of_kind.get(number, ())
        )
        ids = {word: number for number, word in enumerate(words)}
        (folder / VOCABULARY).write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        (folder / SPLITS).write_text(json.dumps(splits), encoding="utf-8")
        _write_labels(folder / LABELS, captions, ids, end_mark)
    return {"images": len(numbers.reference_of), "pairs": pairs}


def _check_target(target: str) -> None:
    """Raises UserError for a folder that holds an earlier export, whose features might stay."""
    for name in (BEFORE, CHANGED, UNCHANGED, LABELS, VOCABULARY, SPLITS):
        if (Path(target) / name).exists():
            raise UserError(f"{target}: {name} already exists", "Remove it, or give a new folder")


class _Numbers:
    """Numbers of images and of splits, so that no number is used twice.

    Args:
        reference_of: The image by (folder, file name).
    """

    def __init__(self) -> None:
        self.reference_of: dict[tuple[str, str], str] = {}
        self._image_of: dict[tuple[str, int], str] = {}
        self._split_of: dict[int, str] = {}

    def add(self, folder: str, reference: str, number: int, split: str) -> bool:
        """Whether the image is new to its folder. Raises UserError."""
        name = PurePosixPath(reference).name
        is_new = (folder, name) not in self.reference_of
        others = (
            self.reference_of.setdefault((folder, name), reference),
            self._image_of.setdefault((folder, number), reference),
        )
        for other in others:
            if other != reference:
                raise UserError(
                    f"{other} and {reference} both are image {number} or {name} of {folder}",
                    "SCORER's code knows images by these names: rename the raw images",
                )
        if self._split_of.setdefault(number, split) != split:
            raise UserError(
                f"image {number} is in {self._split_of[number]} and in {split}",
                "SCORER's code knows pairs by these numbers: rename the raw images",
            )
        return is_new

    def by_split(self) -> dict[str, list[int]]:
        """The numbers of each split in order."""
        splits: dict[str, list[int]] = {}
        for number, split in self._split_of.items():
            splits.setdefault(split, []).append(number)
        return {split: sorted(numbers) for split, numbers in splits.items()}


def number_of(sample: TrainingSample, end: str) -> int:
    """The number at the end of the name of an image of a pair, `before` or `after`."""
    name = PurePosixPath(str(sample.meta.get(end))).name
    number = name.split(".")[0].rpartition("_")[2]
    if not number.isdecimal():
        raise UserError(
            f"{sample.key}: {name} has no number behind its last _",
            "SCORER's code knows images by these numbers: rename the raw images",
        )
    return int(number)


def _write_features(
    path: Path, sample: TrainingSample, after: str, number: int, numbers: _Numbers
) -> None:
    """Writes the features of a pair's images that no earlier pair had. Raises UserError."""
    features, last = sample.features, len(sample.tokens) - 1
    if features is None or not {0, last} <= set(features.frames):
        raise UserError(
            f"{sample.key} holds no features of before and after",
            "Build the shards with features (features.backbone): see docs/features.md",
        )
    split = str(sample.meta.get("split"))
    for folder, end, frame in ((BEFORE, "before", 0), (after, "after", last)):
        reference = str(sample.meta.get(end))
        if numbers.add(folder, reference, number, split):
            file = path / folder / f"{PurePosixPath(reference).name}.npy"
            file.parent.mkdir(exist_ok=True)
            values = features.values[features.frames.index(frame)].astype(np.float32)
            np.save(file, values, allow_pickle=False)


def _check_gaps(splits: Mapping[str, list[int]]) -> None:
    numbers: set[int] = set().union(*splits.values())
    missing = sorted(set(range(len(numbers))) - numbers)
    if missing:
        raise UserError(
            f"image {missing[0]} is missing, while others have higher numbers",
            "Export all splits of the whole data set: SCORER's code counts its images",
        )


def _write_labels(
    file: Path, captions: Mapping[str, Mapping[int, list[str]]], ids: Mapping[str, int], end: bool
) -> None:
    """Rows of ids, padded with 0, and from where to where those of each image go."""
    lists = [listed for of_kind in captions.values() for listed in of_kind.values()]
    lengths = [len(words_of(one)) for listed in lists for one in listed]
    length = max(lengths, default=0) + 1 + end
    count = 1 + max((number for of_kind in captions.values() for number in of_kind), default=-1)
    with h5py.File(file, "w") as output:
        for prefix, kind in (("", CHANGED), ("neg_", UNCHANGED)):
            rows: list[list[int]] = []
            first, last = (-np.ones(count, np.int64) for _ in range(2))
            for number in sorted(captions[kind]):
                first[number] = len(rows)
                for caption in captions[kind][number]:
                    row = [START, *(ids.get(word, UNK) for word in words_of(caption))]
                    rows.append([*row[: length - end], *([END] if end else [])])
                last[number] = len(rows) - 1
            labels = np.zeros((len(rows), length), np.int64)
            for i, row in enumerate(rows):
                labels[i, : len(row)] = row
            parts: dict[str, Any] = {
                "labels": labels,
                "label_start_idx": first,
                "label_end_idx": last,
                "label_length": np.array([len(row) for row in rows], np.int64),
            }
            for name, values in parts.items():
                output.create_dataset(f"{prefix}{name}", data=values)
