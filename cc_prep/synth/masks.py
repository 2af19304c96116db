"""Masks of the changed objects of a scene, 0 and 255, as the data set holds them.

    masks/000000.png          where they are seen before or after
    masks_before/000000.png   what vanished: where they are seen before
    masks_after/000000.png    what appeared: where they are seen after

An object that came has an empty mask before, one that went an empty mask after. One that only
changed its colour or material has nearly the same mask twice, as the camera moves a little.
"""

from __future__ import annotations

import numpy as np

from cc_prep import storage
from cc_prep.datasets.layouts.masks import FOLDERS
from cc_prep.media.images import encode_image
from cc_prep.synth import scenes

SceneMasks = tuple[np.ndarray, np.ndarray, np.ndarray]  # bool [size, size], as in FOLDERS
# Of the image: the changed object, and every other one, must show at least so much.
CHANGED_SHARE, OTHER_SHARE = 0.006, 0.0012


def visible_change(scene: scenes.Scene, size: int) -> SceneMasks | None:
    """The masks of a scene, bool [size, size]; None if a change or an object is hardly seen."""
    from cc_prep.synth import render

    changed = [one.changed for one in scene.each()]
    maps = [render.object_map(moment, size) for moment in scene.moments]
    for solids, object_map in zip((scene.before, scene.after, scene.before), maps, strict=True):
        for number, solid in enumerate(solids):
            share = CHANGED_SHARE if number in changed else OTHER_SHARE
            if solid is not None and (object_map == number).mean() < share:
                return None
    before, after = (np.isin(object_map, changed) for object_map in maps[:2])
    return before | after, before, after


def write(root: str, index: int, masks: SceneMasks) -> None:
    """Writes the masks of scene `index`; the one of after last."""
    for folder, mask in zip(FOLDERS, masks, strict=True):
        pixels = np.where(mask, 255, 0).astype(np.uint8)
        path = storage.join(root, f"{folder}/{index:06d}.png")
        storage.write_bytes(path, encode_image(pixels, "png", 0))
