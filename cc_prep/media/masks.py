"""Change masks of a data set → class ids uint8 [H, W]: 0 unchanged, 1 … K a class each."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import deep, images, scenes
from cc_prep.media.registration import Registration
from cc_prep.records import EMPTY_MASK, ImagePair

Size = tuple[int, int]  # height and width in px
Values = Sequence[tuple[tuple[int, ...], int]]
INDEXED = ("PNG", "TIFF")  # formats whose masks hold a palette's indices
TOP = 255
DEEPENED = 257  # 65535 / 255
WAVELET = re.compile(rb"\xff\x4f\xff\x51.*?\xff\x52.{11}(.)", re.DOTALL)  # of JPEG 2000
IRREVERSIBLE = b"\0"
HALF = 127  # of a lossy mask: values around an edge are neither of the two


class Masks(NamedTuple):
    """Class ids uint8 [H, W] of one pair, None where they are not known.

    Attributes:
        union: Of the two sides.
        before: What vanished, where it is in the before image.
        after: What appeared, where it is in the after image.
    """

    union: np.ndarray | None = None
    before: np.ndarray | None = None
    after: np.ndarray | None = None


NO_MASKS = Masks()


class ImageSizes(NamedTuple):
    """The sizes of a pair's images as they are stored, by which its masks are judged.

    None where one is not known, such as that of a video's frames.
    """

    before: Size | None = None
    after: Size | None = None


UNKNOWN_SIZES = ImageSizes()


@dataclass(frozen=True)
class Shown:
    """What the masks of a pair show.

    Attributes:
        classes: Of change.
        with_greys: The masks that were read as "all but 0 is changed", and have values between
            black and white.
    """

    classes: frozenset[int]
    with_greys: tuple[str, ...] = ()


@dataclass(frozen=True)
class StoredMask:
    """A mask as it is stored: class ids uint8 [H, W], and whether it has unexplained greys."""

    ids: np.ndarray
    has_greys: bool = False


def of_pair(
    root: str,
    pair: ImagePair,
    height: int,
    width: int,
    *,
    sizes: ImageSizes = UNKNOWN_SIZES,
    registration: Registration | None = None,
) -> Masks:
    """The masks that a pair names, in the size of its frames. Raises RejectedPair.

    Args:
        height, width: Of the frames. Where the data set has the two sides and no union, it is made
            of them: where both have a class, it is that of the after image. Of maps of land cover,
            places of the same class on both sides count as unchanged, also beside a union.
        registration: By which the image after was moved, and so its mask is.
    """

    def in_size(mask: StoredMask | None) -> np.ndarray | None:
        return None if mask is None else fitted(mask.ids, height, width)

    union, before, after = map(in_size, _read_all(root, pair, (height, width), sizes))
    if registration is not None and after is not None:
        after = registration.applied_to_mask(after)
    if before is not None and after is not None:
        if pair.land_cover:
            same = before == after
            before, after = np.where(same, 0, before), np.where(same, 0, after)
        if union is None:
            union = np.where(after > 0, after, before)
    return Masks(union, before, after)


def shown(
    root: str, pair: ImagePair, frames: Size | None = None, sizes: ImageSizes = UNKNOWN_SIZES
) -> Shown | None:
    """What a pair's masks show, in the size in which they are stored; None where it has none.

    Args:
        frames: The size of the frames, for which a mask may have been made.

    Raises:
        RejectedPair: Where `of_pair` does.
    """
    if pair.mask is pair.mask_before is pair.mask_after is None:
        return None
    stored = _read_all(root, pair, frames, sizes)
    union, before, after = (None if mask is None else mask.ids for mask in stored)
    if pair.land_cover and before is not None and after is not None:
        after = fitted(after, *before.shape)
        differs = before != after
        before, after = before[differs], after[differs]
    there = [mask for mask in (union, before, after) if mask is not None]
    references = (pair.mask, pair.mask_before, pair.mask_after)
    return Shown(
        frozenset(int(value) for mask in there for value in np.unique(mask) if value),
        tuple(
            reference
            for reference, mask in zip(references, stored, strict=True)
            if reference is not None and mask is not None and mask.has_greys
        ),
    )


def _read_all(
    root: str, pair: ImagePair, frames: Size | None, sizes: ImageSizes
) -> list[StoredMask | None]:
    """Union, before and after; one that is empty in the size of the frames. Raises RejectedPair."""
    # The union is where the change is in the image before.
    images_of = (sizes.before, sizes.before, sizes.after)
    stored: list[StoredMask | None] = []
    for reference, image in zip(
        (pair.mask, pair.mask_before, pair.mask_after), images_of, strict=True
    ):
        mask = None
        if reference == EMPTY_MASK:
            mask = StoredMask(np.zeros(frames or (1, 1), np.uint8))
        elif reference is not None:
            path = storage.resolve(root, reference)
            mask = _read(path, pair.mask_values)
            if image is not None:
                _check_shape(mask.ids.shape, image, frames, path)
        stored.append(mask)
    return stored


def _check_shape(mask: tuple[int, ...], image: Size, frames: Size | None, name: str) -> None:
    """Raises RejectedPair for a mask that cannot lie on its image pixel by pixel.

    It may be the image's size, or that to which both are resized, or smaller or larger in
    proportion, by the rounding of its sides.
    """
    off = abs(mask[0] * image[1] - mask[1] * image[0])  # of two products, as ratios would be off
    if mask in (image, frames) or off < max(image):
        return
    raise RejectedPair(
        Reason.MASK_DOES_NOT_FIT,
        f"{name}: {mask[1]}×{mask[0]} px, and its image has {image[1]}×{image[0]}",
        "Make the mask of the image as it is, not of a part of it or of the turned image",
    )


def read(reference: str, values: Values = ()) -> np.ndarray:
    """The mask at a path or URL as class ids uint8 [H, W].

    Args:
        values: (pixel, class id), where a pixel is the value of its first channel or a colour of
            three. Where they are numbers, a palette's indices count and not its colours. Numbers of
            16 or 32 bits are not scaled, as those of images are. Without values a pixel that is not
            0 in some channel is of class 1; in a lossy format, which changes values, one above
            half.

    Raises:
        RejectedPair: For what `images.read` rejects and for a value that is not known.
    """
    return _read(reference, values).ids


def _read(reference: str, values: Values) -> StoredMask:
    if images.is_frame(reference):
        decoded = Decoded(images.read(reference), is_lossy=True)
    elif images.PART in reference and scenes.is_tile(reference):
        numbers = _eight_bits(scenes.read_mask_tile(reference), reference, bool(values))
        decoded = Decoded(np.repeat(numbers[..., None], 3, axis=2))
    else:
        data = images.read_encoded(reference)
        decoded = _decoded(images.stored(data, reference), data, reference, values)
    if values:
        mask = StoredMask(class_ids(decoded.pixels, values, reference))
    else:
        levels = decoded.pixels.max(axis=2)
        ids = (levels > (HALF if decoded.is_lossy else 0)).astype(np.uint8)
        mask = StoredMask(ids, not (decoded.is_lossy or decoded.is_indexed) and _has_greys(levels))
    if decoded.alpha is not None:
        _check_alpha(mask.ids, decoded.pixels, decoded.alpha, reference)
    return mask


def _has_greys(levels: np.ndarray) -> bool:
    """Whether values uint8 [H, W] look like two levels that were blurred."""
    values = np.flatnonzero(np.bincount(levels.reshape(-1), minlength=TOP + 1))
    greys = values[(values > 0) & (values < TOP)]
    return len(greys) > 1 and bool(greys[0] <= HALF < values[-1])


def _check_alpha(ids: np.ndarray, pixels: np.ndarray, alpha: np.ndarray, name: str) -> None:
    """Raises RejectedPair for a mask whose shape is drawn by what is transparent.

    Args:
        ids: uint8 [H, W], read from the colours alone.
        pixels: uint8 [H, W, 3].
        alpha: uint8 [H, W].
    """
    if alpha.min() == alpha.max():
        return
    has_one_colour = not np.ptp(pixels, axis=(0, 1)).any()
    if has_one_colour or (ids[alpha == 0] > 0).any():
        raise RejectedPair(
            Reason.UNREADABLE_MASK,
            f"{name}: its shape is in its transparency, and its colours say something else",
            "Save it without transparency, black where nothing changed",
        )


@dataclass(frozen=True)
class Decoded:
    """A mask's file: pixels uint8 [H, W, 3], or [H, W, 1] of indices; alpha uint8 [H, W] if any.

    Attributes:
        is_lossy: Its format changes values.
        is_indexed: The pixels are the indices of a palette.
    """

    pixels: np.ndarray
    is_lossy: bool = False
    is_indexed: bool = False
    alpha: np.ndarray | None = None


def _decoded(pixels: np.ndarray | deep.Values, data: bytes, name: str, values: Values) -> Decoded:
    """What is in an image file. What the file is, its content says, whatever its name.

    Raises RejectedPair, which names `name`.

    Args:
        pixels: What `images.stored` gives of `data`.
        values: As for `read`.
    """
    has_colours = bool(values) and len(values[0][0]) > 1
    if isinstance(pixels, deep.Values):
        bands = pixels.bands.shape[2]
        if bands not in (1, 3):
            detail = f"{name}: has {bands} bands"
            raise RejectedPair(Reason.UNREADABLE_MASK, detail, "Save one band of class numbers")
        eight_bit = _eight_bits(pixels.bands, name, bool(values))
        return Decoded(eight_bit if bands == 3 else np.repeat(eight_bit, 3, axis=2))
    with Image.open(io.BytesIO(data), formats=images.DECODED) as image:
        alpha = images.alpha_of(image)
        # A GIF's writer numbers the colours anew, so that only they are the same in all files.
        if image.mode == "P" and image.format in INDEXED and not has_colours:
            indices = np.asarray(ImageOps.exif_transpose(image))
            return Decoded(indices[..., None], is_indexed=True, alpha=alpha)
        return Decoded(pixels, _is_lossy(image, data), alpha=alpha)


def _is_lossy(image: Image.Image, data: bytes) -> bool:
    """Whether values were changed on the way into a file. data: the file."""
    if image.format == "WEBP":
        return not data.startswith(b"VP8L", 12) and b"VP8 " in data
    if image.format == "TIFF":
        return image.info.get("compression") in ("jpeg", "tiff_jpeg")
    if image.format == "JPEG2000":
        wavelet = WAVELET.search(data)
        return wavelet is not None and wavelet[1] == IRREVERSIBLE
    return image.format == "JPEG"


def _eight_bits(numbers: np.ndarray, name: str, are_classes: bool) -> np.ndarray:
    """Values uint8 of those of a deep image, of its shape.

    Args:
        are_classes: Each value counts, and not only whether it is 0. An 8-bit mask that was saved
            with 16 bits has all its values times 257.

    Raises:
        RejectedPair: For values beyond 255.
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

    Raises RejectedPair, which names `name`, for a pixel that is not among them.

    Args:
        values: (pixel, class id), all of one channel or all of three.
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
