"""Change masks of a data set → class ids uint8 [H, W]: 0 unchanged, 1 … K a class each."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import images
from cc_prep.records import EMPTY_MASK, ImagePair

Values = Sequence[tuple[tuple[int, ...], int]]
INDEXED = ("PNG", "TIFF")  # formats whose masks hold a palette's indices
TOP = 255
DEEPENED = 257  # 65535 / 255
WAVELET = re.compile(rb"\xff\x4f\xff\x51.*?\xff\x52.{11}(.)", re.DOTALL)  # of JPEG 2000
IRREVERSIBLE = b"\0"
HALF = 127  # of a lossy mask: values around an edge are neither of the two


class Masks(NamedTuple):
    """Class ids uint8 [H, W] of one pair, None where they are not known.

    union: of the two sides. before: what vanished, where it is in the before image. after: what
    appeared, where it is in the after image.
    """

    union: np.ndarray | None = None
    before: np.ndarray | None = None
    after: np.ndarray | None = None


NO_MASKS = Masks()


def of_pair(root: str, pair: ImagePair, height: int, width: int) -> Masks:
    """The masks that a pair names, in the size of its frames. Raises RejectedPair.

    Where the data set has the two sides and no union, it is made of them: where both have a class,
    it is that of the after image. Of maps of land cover, places of the same class on both sides
    count as unchanged, also beside a union.
    """

    def read_one(reference: str | None) -> np.ndarray | None:
        if reference is None:
            return None
        if reference == EMPTY_MASK:
            return np.zeros((height, width), np.uint8)
        return fitted(read(storage.resolve(root, reference), pair.mask_values), height, width)

    union, before, after = map(read_one, (pair.mask, pair.mask_before, pair.mask_after))
    if before is not None and after is not None:
        if pair.land_cover:
            same = before == after
            before, after = np.where(same, 0, before), np.where(same, 0, after)
        if union is None:
            union = np.where(after > 0, after, before)
    return Masks(union, before, after)


def classes(root: str, pair: ImagePair) -> frozenset[int] | None:
    """The classes of change in a pair's masks; None where it has none. Raises RejectedPair."""
    if pair.mask is pair.mask_before is pair.mask_after is None:
        return None
    union, before, after = (
        None
        if reference is None or reference == EMPTY_MASK
        else read(storage.resolve(root, reference), pair.mask_values)
        for reference in (pair.mask, pair.mask_before, pair.mask_after)
    )
    if pair.land_cover and before is not None and after is not None:
        after = fitted(after, *before.shape)
        differs = before != after
        before, after = before[differs], after[differs]
    there = [mask for mask in (union, before, after) if mask is not None]
    return frozenset(int(value) for mask in there for value in np.unique(mask) if value)


def read(reference: str, values: Values = ()) -> np.ndarray:
    """The mask at a path or URL as class ids uint8 [H, W].

    values: (pixel, class id), where a pixel is the value of its first channel or a colour of three.
    Where they are numbers, a palette's indices count and not its colours. Numbers of 16 or 32 bits
    are not scaled, as those of images are. Without values a pixel that is not 0 in some channel is
    of class 1; in a lossy format, which changes values, one above half. Raises RejectedPair for
    what `images.read` rejects and for a value that is not known.
    """
    if images.is_frame(reference):
        pixels, is_lossy = images.read(reference), True
    else:
        pixels, is_lossy = _pixels(images.read_encoded(reference), reference, values)
    if values:
        return class_ids(pixels, values, reference)
    return (pixels.max(axis=2) > (HALF if is_lossy else 0)).astype(np.uint8)


def _pixels(data: bytes, name: str, values: Values) -> tuple[np.ndarray, bool]:
    """Pixels uint8 [H, W, 3] of an image file, and whether its format changes values.

    What the file is, its content says, whatever its name. values: as for `read`. Raises
    RejectedPair, which names `name`.
    """
    pixels = images.decode(data, name)
    has_colours = bool(values) and len(values[0][0]) > 1
    with Image.open(io.BytesIO(data), formats=images.DECODED) as image:
        is_deep = images.is_deep(image)
        is_lossy = not is_deep and _is_lossy(image, data)
        # A GIF's writer numbers the colours anew, so that only they are the same in all files.
        has_indices = image.mode == "P" and image.format in INDEXED and not has_colours
        if not (is_deep or has_indices):
            return pixels, is_lossy
        numbers = np.asarray(ImageOps.exif_transpose(image))
    eight_bit = _eight_bits(numbers, name, bool(values)) if is_deep else numbers
    return np.repeat(eight_bit[..., None], 3, axis=2), is_lossy


def _is_lossy(image: Image.Image, data: bytes) -> bool:
    """Whether values were changed on the way into a file. data: the file."""
    if image.format == "WEBP":
        return data[12:16] != b"VP8L" and b"VP8 " in data
    if image.format == "TIFF":
        return image.info.get("compression") in ("jpeg", "tiff_jpeg")
    if image.format == "JPEG2000":
        wavelet = WAVELET.search(data)
        return wavelet is not None and wavelet[1] == IRREVERSIBLE
    return image.format == "JPEG"


def _eight_bits(numbers: np.ndarray, name: str, are_classes: bool) -> np.ndarray:
    """Values uint8 [H, W] of those of a deep image.

    are_classes: each value counts, and not only whether it is 0. An 8-bit mask that was saved with
    16 bits has all its values times 257. Raises RejectedPair for values beyond 255.
    """
    if not are_classes:  # less than 0 is what maps say of places without data
        eight_bit = (numbers > 0).astype(np.uint8)
    elif numbers.max() > TOP and not (numbers % DEEPENED).any():
        eight_bit = numbers // DEEPENED
    else:
        eight_bit = numbers
    unknown = (eight_bit < 0) | (eight_bit > TOP) | (eight_bit != np.floor(eight_bit))
    if unknown.any():
        raise RejectedPair(
            Reason.UNREADABLE_MASK, f"{name}: a pixel ({numbers[unknown][0]}), not one of 0 to 255"
        )
    return eight_bit.astype(np.uint8)


def class_ids(pixels: np.ndarray, values: Values, name: str) -> np.ndarray:
    """Class ids uint8 [H, W] of pixels uint8 [H, W, 3].

    values: (pixel, class id), all of one channel or all of three. Raises RejectedPair, which names
    `name`, for a pixel that is not among them.
    """
    channels = len(values[0][0])
    codes = _codes(pixels[..., :channels])
    known = _codes(np.array([pixel for pixel, _ in values]))
    order = np.argsort(known)
    places = np.searchsorted(known[order], codes).clip(max=len(known) - 1)
    unknown = known[order][places] != codes
    if unknown.any():
        pixel_text = ", ".join(map(str, pixels[unknown][0][:channels]))
        listed = "; ".join(", ".join(map(str, pixel)) for pixel, _ in values)
        raise RejectedPair(
            Reason.UNREADABLE_MASK, f"{name}: a pixel ({pixel_text}), not of {listed}"
        )
    return np.array([class_id for _, class_id in values], np.uint8)[order][places]


def _codes(pixels: np.ndarray) -> np.ndarray:
    """One number int64 [...] for each pixel [..., channels]."""
    return pixels.astype(np.int64) @ (256 ** np.arange(pixels.shape[-1]))


def fitted(mask: np.ndarray, height: int, width: int) -> np.ndarray:
    """A mask uint8 [H, W] in the size of its frames, by nearest neighbour."""
    if mask.shape == (height, width):
        return mask
    image = Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST)
    return np.asarray(image)
