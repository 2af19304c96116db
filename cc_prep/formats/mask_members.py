"""The masks of a sample: members `.mask.png`, `.mask_before.png` and `.mask_after.png`.

Each is a grey PNG of class ids in the size of the frames: 0 unchanged, 1 … K the classes that the
JSON names under `mask_classes`. `mask` is the union of the other two, which are there where the
data set tells what vanished from what appeared. Without a mask there is no such key.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cc_prep.formats import tar
from cc_prep.manifest import MAX_CLASSES
from cc_prep.media import images
from cc_prep.records import CHANGE_CLASS, FrameSequence

UNION, BEFORE, AFTER = NAMES = ("mask.png", "mask_before.png", "mask_after.png")
CLASSES = "mask_classes"
OLD_CHANGE = 255  # in the masks of training shards of version 3


def encode(sequence: FrameSequence) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the JSON says of a sequence's masks, and their members; nothing without a union."""
    if sequence.mask is None:
        assert sequence.mask_before is sequence.mask_after is None
        return {}, {}
    classes = sequence.pair.mask_classes
    members = {}
    for name, mask in zip(
        NAMES, (sequence.mask, sequence.mask_before, sequence.mask_after), strict=True
    ):
        if mask is not None:
            assert mask.shape == sequence.frames.shape[1:3], mask.shape
            assert mask.max() <= len(classes), f"class {mask.max()} of {classes}"
            members[name] = images.encode_image(mask, "png", 0)
    return {CLASSES: list(classes)}, members


def with_classes(meta: dict[str, Any], members: Mapping[str, bytes]) -> dict[str, Any]:
    """The JSON of a training sample, with the classes of its mask also where version 3 wrote it.

    That knew one mask, 255 where something changed, and named no classes.
    """
    is_old = CLASSES not in meta and UNION in members and not {BEFORE, AFTER} & members.keys()
    return {**meta, CLASSES: list(CHANGE_CLASS)} if is_old else meta


def check(key: str, meta: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Raises DamagedShard where JSON and members do not name masks together."""
    classes = meta.get(CLASSES)
    if (classes is not None) != (UNION in members):
        raise tar.DamagedShard(f"{key}: {CLASSES} without {UNION}, or the reverse")
    if classes is None:
        if BEFORE in members or AFTER in members:
            raise tar.DamagedShard(f"{key}: a mask of one side without {UNION}")
        return
    is_list = isinstance(classes, list) and all(isinstance(one, str) for one in classes)
    if not is_list or not 1 <= len(classes) <= MAX_CLASSES:
        raise tar.DamagedShard(f"{key}: {CLASSES} in its .json is {str(classes)[:40]!r}")


def decode(key: str, name: str, data: bytes | None, meta: Mapping[str, Any]) -> np.ndarray | None:
    """Class ids uint8 [H, W] of a member; None without one.

    Raises:
        DamagedShard: For one that is no grey image of the frames' size, or has a class that the
            JSON does not name.
    """
    if data is None:
        return None
    pixels = images.decode_stored(data)
    if pixels is None:
        raise tar.DamagedShard(f"{key}.{name}: no image")
    height, width = meta.get("height"), meta.get("width")
    if pixels.shape[:2] != (height, width):
        size = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise tar.DamagedShard(f"{key}.{name}: {size}, not {width}×{height}")
    ids = np.ascontiguousarray(pixels[..., 0])
    count = len(meta[CLASSES])
    if count == 1:
        ids = np.where(ids == OLD_CHANGE, 1, ids)
    if ids.max() > count or (pixels != pixels[..., :1]).any():
        raise tar.DamagedShard(f"{key}.{name}: other values than the class ids 0 to {count}")
    return ids
