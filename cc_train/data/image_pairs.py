"""Two images of any kind, a file, an array or a PIL image, in the size that a captioner takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import PIL.Image

from cc_prep import settings
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.manifest import ImageValues, Pairs
from cc_prep.media import images, registration, scenes, video
from cc_prep.media.deep import Values
from cc_prep.redaction import without_credentials

Image: TypeAlias = "str | os.PathLike[str] | np.ndarray | PIL.Image.Image"
"""A path or URL, `video.mp4#frame=12`, an array [H, W, 3] RGB, [H, W] grey or [H, W, bands], or a
PIL image."""

Scale: TypeAlias = "str | tuple[float, float]"
"""What is black and white, as `image.scale` of a manifest."""

REMEDIES = {
    Reason.MISSING_IMAGE: "Check the path",
    Reason.IMAGE_TOO_SMALL: "Give a larger image",
    Reason.IMAGE_TOO_LARGE: "Shrink it first, or caption its tiles (--tile)",
    Reason.UNREADABLE_VIDEO: "Name a frame that it has, such as VIDEO#frame=0",
}
# What is no image: a file that cannot be opened, one that is no image, an array or PIL image.
NOT_OPENED = "Check the path"
NO_IMAGE = "Save it again, as PNG or JPEG"
RESIZE = "resize one of them first"
NO_ARRAY = "Give numbers [H, W, 3] RGB, [H, W] grey or [H, W, bands], such as uint8, 0 to 255"


class Reading(NamedTuple):
    """How the images of a pair are read, as `image` and `pairs` of a manifest say it."""

    image: ImageValues = ImageValues()
    pairs: Pairs = Pairs()

    @classmethod
    def of(
        cls,
        bands: Sequence[int] | None = None,
        scale: Scale = "dtype",
        register: str = "none",
        resize: bool = False,
    ) -> Reading:
        """That of the arguments of `Captioner`. Raises UserError."""
        image = {"bands": bands if bands is None else tuple(bands), "scale": scale}
        pairs = {"register": register, "resize": resize}
        page = "docs/rasters.md"
        return cls(
            settings.build(ImageValues, image, "bands and scale", page),
            settings.build(Pairs, pairs, "register and resize", page),
        )


AS_STORED = Reading()


class InOwnSize(NamedTuple):
    """A pair, uint8 [2, H, W, 3] RGB, on one grid.

    Attributes:
        compared: The share of the image before that the registered image after shows, since the
            rest is the same in both; None for images that are not registered.
    """

    pixels: np.ndarray
    compared: float | None


class Sized(NamedTuple):
    """A pair, uint8 [2, H, W, 3] RGB, and what is known of it in its own size.

    Attributes:
        are_equal: No pixel differs.
        compared: As that of `InOwnSize`.
    """

    pixels: np.ndarray
    are_equal: bool
    compared: float | None = None


def stack(
    pairs: Sequence[tuple[Image, Image]],
    size: tuple[int, int],
    reading: Reading = AS_STORED,
) -> np.ndarray:
    """Pairs as one batch, uint8 [B, 2, H, W, 3] RGB.

    They are resized as in the preparation, see `images.resize`.

    Args:
        size: Height and width in px.
        reading: How the images are read, both of a pair alike.

    Raises:
        UserError: For anything that is no image, and for a pair whose images differ in size.
    """
    return np.stack([sized(before, after, size, reading).pixels for before, after in pairs])


def in_own_size(before: Image, after: Image, reading: Reading = AS_STORED) -> InOwnSize:
    """Both images as they are. Raises UserError, see `stack`."""
    sides = [(_name(image, side), image) for image, side in ((before, "before"), (after, "after"))]
    names = (sides[0][0], sides[1][0])
    stored = [_stored(image, name, reading.image) for name, image in sides]
    try:
        rgb = images.to_rgb(stored, reading.image)
        *pixels, found = registration.on_one_grid(rgb[0], rgb[1], reading.pairs)
    except RejectedPair as error:
        named = next((name for name in names if name in error.detail), " and ".join(names))
        raise _user_error(error, named, "") from None
    are_files = all(isinstance(one, str | os.PathLike) for one in (before, after))
    way = "resize them (--resize)" if are_files else RESIZE
    require_one_size(pixels, names, way)
    return InOwnSize(np.stack(pixels), None if found is None else found.covered)


def sized(
    before: Image, after: Image, size: tuple[int, int], reading: Reading = AS_STORED
) -> Sized:
    """A pair in the size that a captioner takes. Raises UserError, see `stack`."""
    pixels, compared = in_own_size(before, after, reading)
    are_equal = np.array_equal(pixels[0], pixels[1])
    return Sized(np.stack([images.resize(one, size) for one in pixels]), are_equal, compared)


def require_one_size(
    pixels: Sequence[np.ndarray], names: tuple[str, str], way: str = RESIZE
) -> None:
    """Raises UserError if the two images of a pair, [H, W, 3], differ in size.

    Args:
        way: How to give them one size; the page has no option for it.
    """
    before, after = pixels
    if before.shape != after.shape:
        raise UserError(
            f"{names[0]} is {_size(before)} px and {names[1]} {_size(after)} px",
            f"Give two images of one size, of the same view, or {way}",
        )


def _name(image: Image, side: str) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"the image {side}"


def _stored(image: Any, name: str, values: ImageValues) -> np.ndarray | Values:
    """An image in its own size, uint8 [H, W, 3] RGB, or values of other types and bands."""
    remedy = NO_ARRAY
    try:
        if isinstance(image, str | os.PathLike):
            remedy = NOT_OPENED
            if name.lower().endswith(video.ENDINGS):
                raise UserError(f"{name}: is a video", f"Name a frame of it: {name}#frame=0")
            if images.is_frame(name) or scenes.is_tile(name):
                return images.load(name, values)
            data = images.read_encoded(name)
            remedy = NO_IMAGE
            return images.stored(data, name, values)
        if isinstance(image, PIL.Image.Image):
            return images.from_pillow(image, name, values)
        return images.from_array(image, name, values)
    except RejectedPair as error:
        raise _user_error(error, name, remedy) from None


def _user_error(error: RejectedPair, name: str, remedy: str) -> UserError:
    """The reason why an image is not read, in the words of a call."""
    reason = error.reason.value
    name = without_credentials(name)  # as the error has it
    detail = error.detail.removeprefix(name).removeprefix(": ")
    what = f"{name}: {reason} ({detail})" if detail else f"{name}: {reason}"
    return UserError(what, error.remedy or REMEDIES.get(error.reason, remedy))


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}×{image.shape[0]}"
