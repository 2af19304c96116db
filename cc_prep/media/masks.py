"""Change masks of a data set → class ids uint8 [H, W]: 0 unchanged, 1 … K a class each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import images
from cc_prep.records import EMPTY_MASK, ImagePair

LOSSY = (".jpg", ".jpeg")
HALF = 127  # of a lossy mask: values around an edge are neither of the two


class Masks(NamedTuple):
    """Class ids uint8 [H, W] of one pair, None where they are not known.

    union: of the two sides. before: what vanished, as it stands in the before image. after: what
    appeared, as it stands in the after image.
    """

    union: np.ndarray | None = None
    before: np.ndarray | None = None
    after: np.ndarray | None = None


NO_MASKS = Masks()


def of_pair(root: str, pair: ImagePair, height: int, width: int) -> Masks:
    """The masks that a pair names, in the size of its frames. Raises RejectedPair.

    Where the data set has the two sides and no union, it is made of them: where both have a class,
    it is that of the after image.
    """

    def read_one(reference: str | None) -> np.ndarray | None:
        if reference is None:
            return None
        if reference == EMPTY_MASK:
            return np.zeros((height, width), np.uint8)
        return fitted(read(storage.resolve(root, reference), pair.mask_values), height, width)

    union, before, after = map(read_one, (pair.mask, pair.mask_before, pair.mask_after))
    if union is None and before is not None and after is not None:
        union = np.where(after > 0, after, before)
    return Masks(union, before, after)


def read(reference: str, values: Sequence[tuple[int, int]] = ()) -> np.ndarray:
    """The mask at a path or URL as class ids uint8 [H, W].

    values: (value of a pixel in the first channel, class id), each value that is not 0 among them.
    Without them a pixel that is not 0 in some channel is of class 1; in JPEG, which changes
    values, one above half. Raises RejectedPair for what `images.read` rejects and for a value that
    is not known.
    """
    pixels = images.read(reference)
    if values:
        return class_ids(pixels[..., 0], values, reference)
    is_lossy = reference.lower().endswith(LOSSY) or images.FRAME in reference
    return (pixels.max(axis=2) > (HALF if is_lossy else 0)).astype(np.uint8)


def class_ids(pixels: np.ndarray, values: Sequence[tuple[int, int]], name: str) -> np.ndarray:
    """Class ids uint8 [H, W] of pixels uint8 [H, W].

    values: (value of a pixel, class id); the value 0 is class 0 unless they say otherwise. Raises
    RejectedPair, which names `name`, for a value that is not among them.
    """
    id_of_value = np.full(256, -1, np.int16)
    id_of_value[0] = 0
    for value, class_id in values:
        id_of_value[value] = class_id
    ids = id_of_value[pixels]
    if ids.min() < 0:
        unknown = int(pixels[ids < 0][0])
        known = ", ".join(str(value) for value in sorted({0, *(value for value, _ in values)}))
        raise RejectedPair(Reason.UNREADABLE_MASK, f"{name}: the value {unknown}, not {known}")
    return ids.astype(np.uint8)


def fitted(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """A mask uint8 [H, W] in the size of its frames, by nearest neighbour."""
    if mask.shape == (height, width):
        return mask
    image = Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST)
    return np.asarray(image)
