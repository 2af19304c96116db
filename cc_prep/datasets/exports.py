"""Data sets in the formats of other programs: COCO's instances, ms-swift, lmms-eval.

Each is a new folder that needs nothing else of the data: the pairs' images lie in it as PNG, as the
manifest reads them (bands, registration), so that masks and images fit in every layout.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

from cc_prep import datasets, storage
from cc_prep.datasets.loaded import LoadedPair, LoadedPairs
from cc_prep.errors import RejectedPair, UserError
from cc_prep.manifest import Manifest
from cc_prep.media import images
from cc_prep.progress import Progress, no_progress
from cc_prep.storage import outputs

IMAGES = "images"
QUESTION = "What changed from the first image to the second? Answer in one sentence."
SIDES = ("before", "after")
MEASURES = ("CIDEr", "BLEU-4", "ROUGE-L")  # of lmms-eval: functions of its utils.py


def coco(
    manifest: Manifest, splits: Sequence[str], out: str, progress: Progress = no_progress
) -> int:
    """Writes `instances.json`: the masks of changes as COCO's polygons; the number of pairs.

    An image of COCO is the image before of a pair, and names the one after. Each connected place of
    a class is an annotation. Places with holes are run lengths, since COCO's polygons have none.

    Raises:
        UserError: For a folder that is there, images that cannot be read, and pairs without masks.
    """
    pairs = _Pairs(manifest, splits, out, progress)
    listed, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    classes: dict[str, int] = {}
    for number, (pair, names) in enumerate(pairs, 1):
        height, width = pair.before.shape[:2]
        listed.append(
            {
                "id": number,
                "file_name": names[0],
                "after": names[1],
                "width": width,
                "height": height,
                "pair": pair.record.id,
                "split": pair.record.split,
            }
        )
        mask = np.zeros((height, width), np.uint8) if pair.mask is None else pair.mask
        for class_id, place in places(mask):
            name = pair.record.mask_classes[class_id - 1]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": classes.setdefault(name, len(classes) + 1),
                    "iscrowd": 0,
                    "area": int(place.sum()),
                    "bbox": _box(place),
                    "segmentation": segmentation(place),
                }
            )
    if not annotations:
        raise UserError(f"{manifest.name}: no masks in these pairs", "Give data that has masks")
    categories = [{"id": number, "name": name} for name, number in classes.items()]
    content = {"images": listed, "annotations": annotations, "categories": categories}
    storage.write_json(storage.join(out, "instances.json"), content)
    return len(listed)


def ms_swift(
    manifest: Manifest,
    splits: Sequence[str],
    out: str,
    question: str = QUESTION,
    progress: Progress = no_progress,
) -> int:
    """Writes a SPLIT.jsonl for each split, as ms-swift reads its own data sets; the rows.

    A row is a question about two images and a caption as the answer; a pair has one for each.

    Raises:
        UserError: For a folder that is there, and for images that cannot be read.
    """
    rows: dict[str, list[str]] = {}
    for pair, names in _Pairs(manifest, splits, out, progress):
        paths = [str(Path(storage.local_path(out)).resolve() / name) for name in names]
        for caption in pair.captions:
            messages = [
                {"role": "user", "content": f"<image><image>{question}"},
                {"role": "assistant", "content": caption},
            ]
            row = json.dumps({"messages": messages, "images": paths}, ensure_ascii=False)
            rows.setdefault(pair.record.split, []).append(row)
    if not rows:
        raise UserError(f"{manifest.name}: no captions in these pairs", "Give data that has some")
    for split, lines in rows.items():
        storage.write_bytes(storage.join(out, f"{split}.jsonl"), _lines(lines))
    return sum(map(len, rows.values()))


def lmms_eval(
    manifest: Manifest,
    split: str,
    out: str,
    question: str = QUESTION,
    progress: Progress = no_progress,
) -> int:
    """Writes a task of lmms-eval that scores captions by `cc_train.score`; the number of pairs.

    Raises:
        UserError: For a folder that is there, images that cannot be read, and pairs without
            captions.
    """
    rows = [
        json.dumps(
            {
                "key": pair.record.key,
                **dict(zip(SIDES, names, strict=True)),
                "captions": list(pair.captions),
                "question": question,
            },
            ensure_ascii=False,
        )
        for pair, names in _Pairs(manifest, [split], out, progress)
        if pair.captions
    ]
    if not rows:
        raise UserError(f"{manifest.name}: no captions in {split}", "Give a split that has some")
    task = f"{manifest.name}_{split}"
    file = Path(storage.local_path(out)).resolve() / f"{task}.jsonl"
    storage.write_bytes(str(file), _lines(rows))
    code = resources.files("cc_prep.datasets") / "lmms_eval_utils.py.txt"
    storage.write_bytes(storage.join(out, "utils.py"), code.read_bytes())
    storage.write_bytes(storage.join(out, f"{task}.yaml"), _task(task, str(file)).encode())
    return len(rows)


def _task(name: str, file: str) -> str:
    """The YAML of a task, whose functions are in utils.py beside it."""
    content = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": file}},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_visual": _Function("utils.images"),
        "doc_to_text": _Function("utils.question"),
        "doc_to_target": _Function("utils.reference"),
        "process_results": _Function("utils.results"),
        "generation_kwargs": {"max_new_tokens": 64, "do_sample": False},
        "metric_list": [
            {
                "metric": measure,
                "aggregation": _Function(f"utils.{measure.lower().replace('-', '_')}"),
                "higher_is_better": True,
            }
            for measure in MEASURES
        ],
        "metadata": [{"version": 1.0}],
    }
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False)


class _Function(str):
    """The name of a function of utils.py."""


class _Dumper(yaml.SafeDumper):
    """Writes the tag by which lmms-eval finds functions."""


_Dumper.add_representer(
    _Function, lambda dumper, name: dumper.represent_scalar("!function", str(name))
)


class _Pairs:
    """The pairs of some splits, each with the names of its images, which it writes into a folder.

    Raises:
        UserError: For a folder that is there, and for images that cannot be read.
    """

    def __init__(
        self, manifest: Manifest, splits: Iterable[str], out: str, progress: Progress
    ) -> None:
        outputs.check_folder(out)
        if storage.exists(out):
            raise UserError(f"{out}: already exists", "Give another folder, or remove it")
        self.manifest, self.out, self.progress = manifest, out, progress
        self.records = [pair for split in splits for pair in datasets.pairs(manifest, split)]

    def __iter__(self) -> Iterator[tuple[LoadedPair, tuple[str, str]]]:
        loaded = LoadedPairs(
            self.manifest.root, self.records, None, self.manifest.image, self.manifest.pairs
        )
        for number in range(len(loaded)):
            self.progress(number, len(loaded))
            try:
                pair = loaded[number]
            except RejectedPair as error:
                what = f"{self.records[number].id}: {error.reason.value} ({error.detail})"
                raise UserError(what, "Leave it out: cc-prep inspect --write-exclusions") from None
            key = pair.record.key
            names = f"{IMAGES}/{key}_before.png", f"{IMAGES}/{key}_after.png"
            for name, pixels in zip(names, (pair.before, pair.after), strict=True):
                encoded = images.encode_image(pixels, "png", 0)
                storage.write_bytes(storage.join(self.out, name), encoded)
            yield pair, names
        self.progress(len(loaded), len(loaded))


def places(mask: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """The connected places of each class of a mask, class ids uint8 [H, W]: (class, bool [H, W]).

    Pixels that touch at a corner alone are not connected.
    """
    for class_id in (int(one) for one in np.unique(mask) if one):
        count, labels = cv2.connectedComponents((mask == class_id).astype(np.uint8), connectivity=4)
        for label in range(1, count):
            yield class_id, labels == label


def segmentation(place: np.ndarray) -> Any:
    """A connected place, bool [H, W], as COCO has it: the outline in px along the pixels' edges.

    It is a list of one polygon [x, y, x, y, …], or for a place with holes the run lengths of the
    columns, of 0 first, which pycocotools reads as well.
    """
    outline = _outline(place)
    filled = np.zeros(place.shape, np.uint8)
    contours, _ = cv2.findContours(place.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(filled, contours, -1, 1, cv2.FILLED)
    if np.array_equal(filled, place):
        return [outline]
    flat = np.concatenate(([False], place.T.ravel(), [not place.T.ravel()[-1]]))
    ends = np.flatnonzero(flat[1:] != flat[:-1])
    return {"size": list(place.shape), "counts": np.diff(ends, prepend=0).tolist()}


def _outline(place: np.ndarray) -> list[int]:
    """The corners of the outer edge of a connected place, x and y in turn, clockwise."""
    padded = np.pad(place, 1)
    row, column = (int(of[0]) for of in np.nonzero(padded))  # the first pixel from the top left
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0))  # right, down, left, up; the place is to the right
    start, y, x, heading = (row, column), row, column, 0
    corners: list[int] = []
    while True:
        # The pixels ahead of the corner (y, x): on the left and on the right of the way.
        left, right = (
            padded[y + dy, x + dx]
            for dy, dx in (((-1, 0), (0, 0)), ((0, 0), (0, -1)), ((0, -1), (-1, -1)),
                           ((-1, -1), (-1, 0)))[heading]
        )  # fmt: skip
        turn = 1 if not right else (-1 if left else 0)
        if turn or not corners:
            corners += [x - 1, y - 1]
            heading = (heading + turn) % 4
        y, x = y + steps[heading][0], x + steps[heading][1]
        if (y, x) == start:
            return corners


def _box(place: np.ndarray) -> list[int]:
    """Left, top, width and height of a place, in px."""
    rows, columns = np.nonzero(place)
    left, top = int(columns.min()), int(rows.min())
    return [left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
