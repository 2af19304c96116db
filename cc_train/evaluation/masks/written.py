"""The masks of an evaluation as PNGs of class ids, as `cc-train evaluate --mask-predictions` takes
them.

DIR/predicted_masks/KEY.png   of every pair that the captioner masked
DIR/true_masks/KEY.png        of every pair whose mask was scored
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cc_prep import storage
from cc_prep.errors import UserError
from cc_train.evaluation.captions.coco import PREDICTIONS

FOLDERS = PREDICTED, TRUE = "predicted_masks", "true_masks"


def check(path: Path) -> None:
    """Raises UserError for masks in the folder that no evaluation wrote."""
    for name in FOLDERS:
        if not (path / PREDICTIONS).exists() and any((path / name).glob("*.png")):
            raise UserError(f"{path / name}: masks of no evaluation", "Give another --out")


def write(path: Path, masks: Mapping[str, tuple[bytes, bytes | None]]) -> None:
    """Writes the predicted and the true mask of each key as PNGs, replacing those of an earlier
    evaluation.
    """
    for name in FOLDERS:
        for file in (path / name).glob("*.png"):
            file.unlink()
    for key, pngs in masks.items():
        for name, png in zip(FOLDERS, pngs, strict=True):
            if png is not None:
                storage.write_bytes(str(path / name / f"{key}.png"), png)
