"""Masks of any system against references, both as folders of PNGs of the same names.

A PNG holds class ids: 0 unchanged, 1 … K. The raw values of LEVIR-MCI, 0, 128 (road) and 255
(building), are taken as 0, 1 and 2, and those of binary masks, 0 and 255, as 0 and 1. Of an image
with three equal channels the first one is read, and of one with a palette the indices; a picture in
colours, such as LEVIR-MCI's for display, holds no class ids and is refused.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.media.images import MAX_PIXELS
from cc_train.evaluation.evaluation_files import MaskScores
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.masks.segmentation import confusion

VALUES = 256
# Values that stand for class ids, and the names of the classes, by how many classes there are.
RAW = {2: {255: 1}, 3: {128: 1, 255: 2}}
NAMES = {2: ("change",), 3: ("road", "building")}
MAX_LISTED = 3


def score(predictions: str, references: str, classes: int | None = None) -> MaskScores:
    """The scores of the masks in one folder against those of the same names in another.

    Args:
        classes: Their number, with the unchanged one; None chooses 2 or 3 by the values.

    Raises:
        UserError: For a mask that is missing or unreadable, of another size than its reference, or
            with an unknown value, and where the values do not tell how many classes there are.
    """
    names = _pngs(references)
    missing = sorted({*names} - {*_pngs(predictions)})
    if missing:
        raise UserError(
            f"{predictions}: {len(missing)} masks are missing, such as "
            f"{', '.join(missing[:MAX_LISTED])}",
            f"Predict one for each PNG in {references}",
        )
    matrix = np.zeros((VALUES, VALUES), np.int64)
    unchanged = alarmed = 0
    path_of_value: dict[int, str] = {}
    for name in names:
        paths = storage.join(references, name), storage.join(predictions, name)
        masks = [_read(path) for path in paths]
        if masks[0].shape != masks[1].shape:
            sizes = [f"{mask.shape[1]}×{mask.shape[0]}" for mask in masks]
            raise UserError(
                f"{paths[1]}: {sizes[1]} px, its reference {sizes[0]}",
                "Resize predictions by nearest neighbour",
            )
        for path, mask in zip(paths, masks, strict=True):
            for value in np.unique(mask):
                path_of_value.setdefault(int(value), path)
        matrix += confusion(masks[0], masks[1], VALUES - 1)
        unchanged += not masks[0].any()
        alarmed += not masks[0].any() and bool(masks[1].any())
    if classes is None:
        classes = _inferred_classes(path_of_value)
    folded = np.zeros((classes, classes), np.int64)
    ids = _class_ids(path_of_value, classes)
    for true, row in ids.items():
        for predicted, column in ids.items():
            folded[row, column] += matrix[true, predicted]
    class_names = NAMES.get(classes) or tuple(f"class {i}" for i in range(1, classes))
    return segmentation.scores(class_names, folded, len(names), unchanged, alarmed)


def _inferred_classes(path_of_value: dict[int, str]) -> int:
    """2 or 3 classes, with the unchanged one. Raises UserError where both fit the values."""
    if path_of_value.keys() & {2, 128}:
        return 3
    if {1, 255} <= path_of_value.keys():
        # Binary masks in two notations; or roads as ids and buildings as raw values of LEVIR-MCI.
        raise UserError(
            f"{path_of_value[255]} holds 255, {path_of_value[1]} 1: one class of change, or two",
            "Give --classes 2 if both are the change, --classes 3 if road and building",
        )
    return 2


def _class_ids(path_of_value: dict[int, str], classes: int) -> dict[int, int]:
    """Class ids by value. Raises UserError for a value that is no class."""
    values = {*path_of_value}
    ids = {value: value for value in range(classes)} | RAW.get(classes, {})
    unknown = sorted(values - {*ids})
    if unknown:
        raise UserError(
            f"{path_of_value[unknown[0]]}: the value {unknown[0]}, and there are {classes} classes",
            "Give class ids from 0, and --classes N, which counts the unchanged one",
        )
    return {value: ids[value] for value in sorted(values)}


def _pngs(folder: str) -> list[str]:
    """Names of the PNGs in a folder. Raises UserError."""
    if not storage.is_folder(folder):
        raise UserError(f"{folder}: no such folder", "Check the path")
    names = sorted(storage.list_files(folder, ".png"))
    if not names:
        raise UserError(f"{folder}: no PNG in it", "Give the folder of the masks")
    return names


def _read(path: str) -> np.ndarray:
    """The values uint8 [H, W] of a PNG. Raises UserError."""
    try:
        with Image.open(io.BytesIO(storage.read_bytes(path)), formats=("PNG",)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width}×{image.height} px")
            values = np.asarray(image.convert("L") if image.mode in ("1", "LA") else image)
    except Exception as error:  # Pillow raises nearly every type for some damaged file
        reason = str(error).replace("<_io.BytesIO object", "<bytes")
        raise UserError(f"{path}: no mask: {reason}", "Give a PNG of class ids") from None
    if values.ndim == 3:
        if (values[..., :3] != values[..., :1]).any():
            raise UserError(f"{path}: a picture in colours", "Give a PNG of class ids, in grey")
        values = values[..., 0]
    if values.max() >= VALUES:
        raise UserError(f"{path}: the value {int(values.max())}", "Give a PNG of 8 bits")
    return values.astype(np.uint8)
