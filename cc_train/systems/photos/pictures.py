"""Two pictures as a whole: whether they show one view, and whether one became darker or blurred.

It is computed on images of `SIDE` px: there, a shift by a pixel of a small photograph and the
noise of a camera are less than the blur.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

SIDE = 104  # px
BLOCKS = 13  # a side of the grid of blocks in which edges are compared
BLUR = 1.2  # deviation in px, before edges are compared
DIFFERS = 12.0  # levels by which a pixel differs at least
MIN_GAIN = 1.25  # of the brightness, from which on a picture became brighter or darker
GREY, COLOURED = 1.5, 5.0  # levels between the channels: at most of a grey, at least of a coloured
MIN_BLUR = 2.2  # how many times weaker the fine structure of a blurred picture is
MIN_ALIKE = 0.6  # of one view, for which a change of the whole picture is stated
FINE = 0.3  # levels of fine structure that count as none
ENERGY = 16.0  # of edges, in squared levels for each px; below it there is only noise
# What a picture became, and the reverse.
GAINS = ("became brighter", "became darker")
BLURS = ("became blurred", "became sharper")
COLOURS = ("became black and white", "became colored")


@dataclass(frozen=True)
class Pictures:
    """What is known of two pictures as a whole.

    Attributes:
        alike: How well the edges of both agree, -1 to 1. About 1 where one camera stood still, 0
            where it turned; a large object that appeared leaves 0.4 to 0.9.
        change: What the picture became, one of GAINS, BLURS and COLOURS; "" if it stayed as it was.
        gain: How many times brighter the second is.
        before: Both pictures as they can be compared, float32 [SIDE, SIDE, 3] in 0 … 255: what
            the picture became is taken out.
        after: The same.
    """

    alike: float
    change: str
    gain: float
    before: np.ndarray
    after: np.ndarray

    @property
    def differs(self) -> np.ndarray:
        """Which pixels differ, bool [SIDE, SIDE]."""
        levels: np.ndarray = np.abs(self.before - self.after).mean(2)
        return levels > DIFFERS

    def difference(self, box: tuple[float, float, float, float]) -> float:
        """How much the pixels of a box differ, in levels; three quarters of them differ less.

        Args:
            box: Left, top, right and bottom, as shares of the picture.
        """
        left, top, right, bottom = (round(SIDE * edge) for edge in box)
        rows, columns = slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1))
        levels = np.abs(self.before - self.after).mean(2)[rows, columns]
        return float(np.percentile(levels, 75)) if levels.size else 0.0


def without_change(
    before: np.ndarray, after: np.ndarray, pictures: Pictures
) -> tuple[np.ndarray, np.ndarray]:
    """Both images, uint8 [H, W, 3] RGB, as they were if the picture had stayed as it was.

    A blurred picture stays blurred.
    """
    if pictures.change in GAINS:
        after = (after / pictures.gain).clip(0, 255).round().astype(np.uint8)
    elif pictures.change in COLOURS:
        before, after = (
            cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
            for image in (before, after)
        )
    return before, after


def compare(before: np.ndarray, after: np.ndarray) -> Pictures:
    """Compares two images, uint8 [H, W, 3] RGB of one size."""
    small = [_small(image) for image in (before, after)]
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in small]
    alike = _alike(*greys)
    gain = float(np.exp(np.median(np.log((greys[1] + 8) / (greys[0] + 8)))))
    change = _change(small, gain, _sharper(before, after, gain)) if alike >= MIN_ALIKE else ""
    if change in COLOURS:
        small = [np.repeat(grey[..., None], 3, axis=2) for grey in greys]
    return Pictures(alike, change, gain, small[0], small[1] / gain)


def _small(image: np.ndarray) -> np.ndarray:
    return cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.float32)


def _alike(before: np.ndarray, after: np.ndarray) -> float:
    """The mean agreement of the edges over blocks, where there are edges; grey [SIDE, SIDE]."""
    one, other = (_edges(grey) for grey in (before, after))
    shared, own, others = (
        _of_blocks((a * b).sum(0)) for a, b in ((one, other), (one, one), (other, other))
    )
    agreement = shared / np.sqrt(own * others + ENERGY)
    weight = np.sqrt(np.maximum(own, others))
    weight = np.minimum(weight, np.percentile(weight, 60))  # no single block decides
    total = float(weight.sum())
    return float((weight * agreement).sum() / total) if total > 0 else 1.0


def _edges(grey: np.ndarray) -> np.ndarray:
    smooth = cv2.GaussianBlur(grey, (0, 0), BLUR)
    return np.stack([cv2.Sobel(smooth, cv2.CV_32F, dx, 1 - dx) for dx in (1, 0)])


def _of_blocks(values: np.ndarray) -> np.ndarray:
    side = SIDE // BLOCKS
    return values.reshape(BLOCKS, side, BLOCKS, side).mean((1, 3))


def _sharper(before: np.ndarray, after: np.ndarray, gain: float) -> float:
    """How much stronger the fine structure of the second image is, in most of its blocks."""
    strengths = []
    for image in (before, after):
        grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
        larger = cv2.resize(grey, (2 * SIDE, 2 * SIDE), interpolation=cv2.INTER_AREA)
        smooth = cv2.GaussianBlur(larger.astype(np.float32), (0, 0), 1)  # leaves out the noise
        fine = cv2.Laplacian(smooth, cv2.CV_32F) ** 2
        strengths.append(np.sqrt(_of_blocks(fine.reshape(SIDE, 2, SIDE, 2).mean((1, 3)))))
    return float(np.median((strengths[1] / gain + FINE) / (strengths[0] + FINE)))


def _change(small: list[np.ndarray], gain: float, sharper: float) -> str:
    before, after = (float((image.max(2) - image.min(2)).mean()) for image in small)
    if max(gain, 1 / gain) > MIN_GAIN:
        return GAINS[gain < 1]
    if max(sharper, 1 / sharper) > MIN_BLUR:
        return BLURS[sharper > 1]
    if max(before, after) >= COLOURED and min(before, after) <= GREY:
        return COLOURS[before < after]
    return ""
