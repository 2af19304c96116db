"""Data sets in the formats of other programs: COCO's instances, FiftyOne, ms-swift, lmms-eval.

Each is a new folder that needs nothing else of the data: the pairs' images lie in it as PNG, as the
manifest reads them (bands, registration), so that masks and images fit in every layout.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
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
from cc_prep.records import NO_CHANGE, ImagePair
from cc_prep.storage import outputs

IMAGES = "images"
QUESTION = "What changed from the first image to the second? Answer in one sentence."
SIDES = ("before", "after")
MEASURES = ("CIDEr", "BLEU-4", "ROUGE-L")  # of lmms-eval: functions of its utils.py


def coco(
    manifest: Manifest, splits: Sequence[str], out: str, progress: Progress = no_progress
) -> tuple[int, int]:
    """Writes `instances.json`: the masks of changes as COCO's polygons.

    An image of COCO is the image before of a pair, and names the one after. Each connected place of
    a class is an annotation. Places with holes are run lengths, since COCO's polygons have none.
    A changed pair without a mask is left out: without annotations it would be an unchanged one.

    Returns:
        The numbers of pairs that are written and that are left out.

    Raises:
        UserError: For a folder that is there, images that cannot be read, and pairs without masks.
    """
    listed_pairs = _records(manifest, splits, "masks")
    records = [one for one in listed_pairs if one.kind == NO_CHANGE or _has_mask(one)]
    listed, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    names = dict.fromkeys(name for record in records for name in record.mask_classes)
    classes = {name: number for number, name in enumerate(names, 1)}
    with _new_folder(out) as folder:
        pairs = _with_images(manifest, records, folder, progress)
        for number, (pair, (before, after)) in enumerate(pairs, 1):
            height, width = pair.before.shape[:2]
            about = {"pair": pair.record.id, "split": pair.record.split, "after": after}
            size = {"height": height, "width": width}
            listed.append({"id": number, "file_name": before, **size, **about})
            mask = np.zeros((height, width), np.uint8) if pair.mask is None else pair.mask
            for class_id, place in places(mask):
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": classes[pair.record.mask_classes[class_id - 1]],
                        "iscrowd": 0,
                        "area": int(place.sum()),
                        "bbox": _box(place),
                        "segmentation": segmentation(place),
                    }
                )
        categories = [{"id": number, "name": name} for name, number in classes.items()]
        content = {"images": listed, "annotations": annotations, "categories": categories}
        storage.write_json(str(folder / "instances.json"), content)
    return len(records), len(listed_pairs) - len(records)


def fiftyone(
    manifest: Manifest, splits: Sequence[str], out: str, progress: Progress = no_progress
) -> int:
    """Writes `samples.json`, a data set of groups as `fiftyone.Dataset.from_json` reads it.

    A group is a pair, with a sample for each image; the number of pairs. Where masks are known, the
    sample before has that of what vanished and the sample after that of what appeared, or both the
    union.

    Raises:
        UserError: For a folder that is there, and for images that cannot be read.
    """
    records = _records(manifest, splits, "pairs")
    samples = list[dict[str, Any]]()
    targets: dict[str, str] = {}
    with _new_folder(out) as folder:
        for pair, names in _with_images(manifest, records, folder, progress):
            record = pair.record
            targets |= {str(number): name for number, name in enumerate(record.mask_classes, 1)}
            sides = zip(SIDES, names, (pair.mask_before, pair.mask_after), strict=True)
            for side, name, own in sides:
                mask = pair.mask if own is None else own
                label: dict[str, Any] | None = None
                if mask is not None:
                    file = f"{name.removesuffix('.png')}_mask.png"
                    storage.write_bytes(str(folder / file), images.encode_image(mask, "png", 0))
                    label = {
                        "_id": {"$oid": _object_id(file)},
                        "_cls": "Segmentation",
                        "tags": [],
                        "mask": None,
                        "mask_path": _placed(out, file),
                    }
                group = {"_cls": "Group", "_id": {"$oid": _object_id(record.key)}, "name": side}
                samples.append(
                    {
                        "filepath": _placed(out, name),
                        "tags": [record.split],
                        "metadata": None,
                        "group": group,
                        "pair": record.id,
                        "kind": record.kind,
                        "change_type": record.change_type,
                        "captions": list(pair.captions),
                        "change": label,
                    }
                )
        text, fields = "fiftyone.core.fields.StringField", "fiftyone.core.fields"
        content = {
            "name": manifest.name,
            "media_type": "group",
            "group_field": "group",
            "group_media_types": dict.fromkeys(SIDES, "image"),
            "default_group_slice": SIDES[1],
            "sample_fields": {
                "group": f"{fields}.EmbeddedDocumentField(fiftyone.core.groups.Group)",
                **dict.fromkeys(("pair", "kind", "change_type"), text),
                "captions": f"{fields}.ListField({text})",
                "change": f"{fields}.EmbeddedDocumentField(fiftyone.core.labels.Segmentation)",
            },
            "info": {},
            "mask_targets": {"change": targets},
            "samples": samples,
        }
        storage.write_json(str(folder / "samples.json"), content)
    return len(records)


def _object_id(text: str) -> str:
    """An id of MongoDB that the same text always gets: 24 hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


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
        UserError: For a folder that is there, images that cannot be read, and pairs without
            captions.
    """
    records = [one for one in _records(manifest, splits, "captions") if one.captions]
    rows: dict[str, list[dict[str, Any]]] = {}
    with _new_folder(out) as folder:
        for pair, names in _with_images(manifest, records, folder, progress):
            paths = [_placed(out, name) for name in names]
            for caption in pair.captions:
                messages = [
                    {"role": "user", "content": f"<image><image>{question}"},
                    {"role": "assistant", "content": caption},
                ]
                row = {"messages": messages, "images": paths}
                rows.setdefault(pair.record.split, []).append(row)
        for split, of_split in rows.items():
            _write_lines(folder / f"{split}.jsonl", of_split)
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
    records = [one for one in _records(manifest, [split], "captions") if one.captions]
    task = f"{manifest.name}_{split}"
    with _new_folder(out) as folder:
        rows = [
            {
                "key": pair.record.key,
                **dict(zip(SIDES, names, strict=True)),
                "captions": list(pair.captions),
                "question": question,
            }
            for pair, names in _with_images(manifest, records, folder, progress)
        ]
        _write_lines(folder / f"{task}.jsonl", rows)
        code = resources.files("cc_prep.datasets") / "lmms_eval_utils.py.txt"
        storage.write_bytes(str(folder / "utils.py"), code.read_bytes())
        text = _task(task, _placed(out, f"{task}.jsonl"))
        storage.write_bytes(str(folder / f"{task}.yaml"), text.encode())
    return len(rows)


def _placed(out: str, name: str) -> str:
    """Where a file of the folder will be, as an absolute path."""
    return str(Path(storage.local_folder(out)).resolve() / name)


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


def _records(manifest: Manifest, splits: Iterable[str], wanted: str) -> list[ImagePair]:
    """The pairs of some splits.

    Args:
        wanted: `captions` or `masks`, which at least one of them must have; `pairs` for any.

    Raises:
        UserError: Where there are none.
    """
    records = [pair for split in splits for pair in datasets.pairs(manifest, split)]
    has = {
        "captions": lambda pair: pair.captions,
        "masks": _has_mask,
        "pairs": lambda pair: pair,
    }[wanted]
    if not any(map(has, records)):
        what = f"{manifest.name}: no {wanted} in these splits"
        raise UserError(what, "Give data or a split that has some")
    return records


def _has_mask(pair: ImagePair) -> bool:
    return bool(pair.mask or pair.mask_before or pair.mask_after or pair.land_cover)


@contextlib.contextmanager
def _new_folder(out: str) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete.

    Raises:
        UserError: For one that is there, and for one of an object store.
    """
    outputs.check_folder(out)
    target = Path(storage.local_folder(out))
    if target.exists():
        raise UserError(f"{out}: already exists", "Give another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        folder = Path(temporary) / target.name
        (folder / IMAGES).mkdir(parents=True)
        yield folder
        folder.replace(target)


def _with_images(
    manifest: Manifest, records: Sequence[ImagePair], folder: Path, progress: Progress
) -> Iterator[tuple[LoadedPair, tuple[str, str]]]:
    """The pairs with the names of their images, which it writes into the folder.

    Raises:
        UserError: For images that cannot be read.
    """
    loaded = LoadedPairs(manifest.root, records, None, manifest.image, manifest.pairs)
    for number, record in enumerate(records):
        progress(number, len(records))
        try:
            pair = loaded[number]
        except RejectedPair as error:
            what = f"{record.id}: {error.reason.value} ({error.detail})"
            raise UserError(what, "Leave it out: cc-prep inspect --write-exclusions") from None
        names = f"{IMAGES}/{record.key}_before.png", f"{IMAGES}/{record.key}_after.png"
        for name, pixels in zip(names, (pair.before, pair.after), strict=True):
            storage.write_bytes(str(folder / name), images.encode_image(pixels, "png", 0))
        yield pair, names
    progress(len(records), len(records))


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


def _write_lines(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    storage.write_bytes(str(file), lines.encode())
