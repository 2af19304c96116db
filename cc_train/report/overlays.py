"""Masks over both images of a pair: what a captioner masks, and against the true mask."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2
import numpy as np
import PIL.Image

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media import images
from cc_prep.media.masks import fitted
from cc_prep.storage import outputs
from cc_train.captioner import Caption
from cc_train.data import image_pairs
from cc_train.data.image_pairs import AS_STORED, Image, Reading
from cc_train.report import legend, pictures
from cc_train.report.pictures import CODECS

RIGHT, WRONG, MISSED = legend.VERDICTS.values()
# RGB of classes; the last one for all further ones
COLOURS = (
    (225, 30, 30), (255, 200, 0), (60, 110, 255),
    (170, 60, 200), (0, 170, 170), (150, 90, 40),
)  # fmt: skip
OPACITY = 0.5
SIDE = 320  # px that an image of an overlay is wide at least
GAP = 6  # px between the images


def check_names(mask: str | None, overlay: str | None) -> None:
    """Raises UserError where a file has a name of no format, or cannot be there."""
    for option, name, known in (("--mask", mask, [".png"]), ("--overlay", overlay, [*CODECS])):
        if name is not None and Path(name).suffix.lower() not in known:
            raise UserError(f"{option} {name}: no such picture", f"Give one of {', '.join(known)}")
        if name is not None:
            outputs.check_file(name, option)


def write(
    caption: Caption,
    pair: tuple[Image, Image],
    mask: str | None,
    overlay: str | None,
    reading: Reading = AS_STORED,
) -> None:
    """Writes the mask of a caption, and a picture of it over both images.

    Args:
        mask: A PNG of class ids in the images' own size.
        overlay: Before and after side by side.
        reading: How the images are read.

    Raises:
        UserError: For a captioner without masks.
    """
    if caption.mask is None:
        raise UserError(
            "this captioner predicts no masks",
            "Give chain-mini or a run of cc-train chain, or leave --mask and --overlay out",
        )
    before_after = image_pairs.in_own_size(*pair, reading).pixels
    in_size = fitted(caption.mask, *before_after.shape[1:3])
    if mask is not None:
        storage.write_bytes(mask, _with_palette(in_size))
    if overlay is not None:
        factor = max(1, -(-SIDE // before_after.shape[2]))
        large = before_after.repeat(factor, axis=1).repeat(factor, axis=2)
        colours = dict(enumerate(COLOURS, 1))
        large_mask = in_size.repeat(factor, axis=0).repeat(factor, axis=1)
        picture = side_by_side([over(one, large_mask, colours) for one in large])
        codec = CODECS[Path(overlay).suffix.lower()]
        storage.write_bytes(overlay, images.encode_image(picture, codec, 90))


def _with_palette(mask: np.ndarray) -> bytes:
    """A mask uint8 [H, W] as PNG: its pixels are class ids, and a viewer shows their colours.

    Of ids alone a viewer would show black, and what reads masks takes the ids of a palette.
    """
    palette = [(0, 0, 0), *COLOURS, *[COLOURS[-1]] * (255 - len(COLOURS))]
    picture = PIL.Image.fromarray(mask)
    picture.putpalette(np.array(palette, np.uint8).tobytes())
    file = io.BytesIO()
    picture.save(file, "png")
    return file.getvalue()


def of_sample(sample: TrainingSample, mask: np.ndarray | None) -> tuple[bytes, bytes] | None:
    """Before and after of a sample under a captioner's mask of it, as JPEG.

    Where the sample has a true mask they are compared, by `verdicts`. None where there is no mask,
    or the sample holds no images.
    """
    ends = pictures.ends(sample)
    if mask is None or ends is None:
        return None
    mask, true = fitted(mask, *ends[0].shape[:2]), sample.mask()
    if true is None:
        colours = dict(enumerate(COLOURS, 1))
    else:
        mask, colours = verdicts(mask, true), dict(enumerate((RIGHT, WRONG, MISSED), 1))
    before, after = (images.encode_image(over(one, mask, colours), "jpg", 90) for one in ends)
    return before, after


def verdicts(mask: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Verdict on each pixel, uint8 [H, W]: 1 right, 2 wrong, 3 missed change, else 0.

    Args:
        mask, true: Class ids uint8 [H, W]. A pixel is wrong if it is unchanged or of another class.
    """
    right = (mask == true) & (mask > 0)
    missed = (mask == 0) & (true > 0)
    wrong = (mask > 0) & ~right
    return (right + 2 * wrong + 3 * missed).astype(np.uint8)


def over(
    image: np.ndarray, mask: np.ndarray, colours: Mapping[int, tuple[int, int, int]]
) -> np.ndarray:
    """An image uint8 [H, W, 3] with the values of a mask [H, W] in their colours: an outline, and
    half transparent inside. A value without a colour has that of the last one.
    """
    out = image.astype(np.float32)
    for value in np.unique(mask[mask > 0]).tolist():
        colour = np.array(colours.get(value, [*colours.values()][-1]), np.float32)
        inside = (mask == value).astype(np.uint8)
        core = cv2.erode(inside, np.ones((3, 3), np.uint8), borderValue=0)
        share = np.where(core, OPACITY, 1.0)[..., None] * inside[..., None]
        out = out * (1 - share) + colour * share
    return out.round().astype(np.uint8)


def side_by_side(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures [H, W, 3] of one height beside one another, with white gaps."""
    gap = np.full((pictures[0].shape[0], GAP, 3), 255, np.uint8)
    parts = [part for picture in pictures for part in (picture, gap)]
    return np.concatenate(parts[:-1], axis=1)
