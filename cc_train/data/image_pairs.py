"""Two images of any kind, a file, an array or a PIL image, in the size that a captioner takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import PIL.Image

from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.media import images, video
from cc_prep.redaction import without_credentials

Image: TypeAlias = "str | os.PathLike[str] | np.ndarray | PIL.Image.Image"
"""A path or URL, `video.mp4#frame=12`, uint8 [H, W, 3] RGB or [H, W] grey, or a PIL image."""

REMEDIES = {
    Reason.MISSING_IMAGE: "Check the path",
    Reason.IMAGE_TOO_SMALL: "Give a larger image",
    Reason.IMAGE_TOO_LARGE: "Shrink it first",
    Reason.UNREADABLE_VIDEO: "Name a frame that it has, such as VIDEO#frame=0",
}
# What is no image: a file that cannot be opened, one that is no image, an array or PIL image.
NOT_OPENED = "Check the path"
NO_IMAGE = "Save it again, as PNG or JPEG"
NO_ARRAY = "Give uint8, 0 to 255, [H, W, 3] RGB or [H, W] grey"


def stack(pairs: Sequence[tuple[Image, Image]], size: tuple[int, int]) -> np.ndarray:
    """Pairs as one batch, uint8 [B, 2, H, W, 3] RGB.

    They are resized as in the preparation, see `images.resize`.

    Args:
        size: Height and width in px.

    Raises:
        UserError: For anything that is no image, and for a pair whose images differ in size.
    """
    return np.stack([_pair(before, after, size) for before, after in pairs])


def in_own_size(before: Image, after: Image) -> np.ndarray:
    """Both images as they are, uint8 [2, H, W, 3] RGB. Raises UserError, see `stack`."""
    sides = [(_name(image, side), image) for image, side in ((before, "before"), (after, "after"))]
    pixels = [_pixels(image, name) for name, image in sides]
    require_one_size(pixels, (sides[0][0], sides[1][0]))
    return np.stack(pixels)


def _pair(before: Image, after: Image, size: tuple[int, int]) -> np.ndarray:
    pixels = in_own_size(before, after)
    return np.stack([images.resize(image, size) for image in pixels])


def require_one_size(pixels: Sequence[np.ndarray], names: tuple[str, str]) -> None:
    """Raises UserError if the two images of a pair, [H, W, 3], differ in size."""
    before, after = pixels
    if before.shape != after.shape:
        raise UserError(
            f"{names[0]} is {_size(before)} px and {names[1]} {_size(after)} px",
            "Give two images of one size, of the same view",
        )


def _name(image: Image, side: str) -> str:
    return os.fspath(image) if isinstance(image, str | os.PathLike) else f"the image {side}"


def _pixels(image: Any, name: str) -> np.ndarray:
    """An image in its own size, uint8 [H, W, 3] RGB."""
    remedy = NO_ARRAY
    try:
        if isinstance(image, str | os.PathLike):
            remedy = NOT_OPENED
            if name.lower().endswith(video.ENDINGS):
                raise UserError(f"{name}: is a video", f"Name a frame of it: {name}#frame=0")
            if images.is_frame(name):
                return images.read(name)
            data = images.read_encoded(name)
            remedy = NO_IMAGE
            return images.decode(data, name)
        if isinstance(image, PIL.Image.Image):
            return images.from_pillow(image, name)
        return images.from_array(image, name)
    except RejectedPair as error:
        reason = error.reason.value
        name = without_credentials(name)  # as the error has it
        detail = error.detail.removeprefix(name).removeprefix(": ")
        what = f"{name}: {reason} ({detail})" if detail else f"{name}: {reason}"
        raise UserError(what, error.remedy or REMEDIES.get(error.reason, remedy)) from None


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}×{image.shape[0]}"
