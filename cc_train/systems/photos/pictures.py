"""Two pictures as a whole: whether they show one view, and whether one became darker or cropped.

It is computed on images of `SIDE` px: there, a shift by a pixel of a small photograph and the
noise of a camera are less than the blur.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
CROPS = ("was cropped", "shows more than before")
# Of points that both pictures have, where they do not show one view: SIFT (Lowe, IJCV 2004).
POINTS, POINTS_SIDE = 400, 320  # how many of a picture, in px
RATIO = 0.8  # of the distances to the best and the second-best counterpart, at most
MAX_ERROR = 3.0  # px between a point and where a view has it
MIN_POINTS, MIN_SHARE = 10, 0.4  # that fit one view
MIN_ZOOM, MAX_TURN = 1.12, 3.0  # of a cropped picture: at least, and degrees at most
# Names of colors by their hues in degrees, from the first to below the second.
HUES = {
    "orange": (15, 45),
    "yellow": (45, 70),
    "green": (70, 165),
    "blue": (165, 260),
    "purple": (260, 310),
    "pink": (310, 340),
}
MIN_SATURATION, MIN_VALUE = 0.3, 0.2  # of a pixel that has a color
MOST = 0.6  # share of the pixels that differ, which name their color


@dataclass(frozen=True)
class Pictures:
    """What is known of two pictures as a whole.

    Attributes:
        alike: How well the edges of both agree, -1 to 1. About 1 where one camera stood still, 0
            where it turned; a large object that appeared leaves 0.4 to 0.9.
        change: What the picture became, one of GAINS, BLURS, COLOURS and CROPS; "" if it stayed as
            it was.
        gain: How many times brighter the second is.
        before: Both pictures as they can be compared, float32 [SIDE, SIDE, 3] in 0 … 255: what
            the picture became is taken out.
        after: The same.
        view: Of a cropped picture: from a place in the first picture to that in the second, as
            shares of the width and height, float [2, 3].
    """

    alike: float
    change: str
    gain: float
    before: np.ndarray
    after: np.ndarray
    view: np.ndarray | None = None

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

    def new_color(self, box: tuple[float, float, float, float]) -> str:
        """The color that most of the pixels of a box that differ have in the second picture.

        Empty where they have none, or had it before.
        """
        left, top, right, bottom = (round(SIDE * edge) for edge in box)
        inside = slice(top, bottom), slice(left, right)
        changed = self.differs[inside]
        old, new = (_color(picture[inside][changed]) for picture in (self.before, self.after))
        return new if new != old else ""


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
    elif pictures.view is not None:
        before, after = _in_one_view(before, after, pictures.view)
    return before, after


def compare(before: np.ndarray, after: np.ndarray) -> Pictures:
    """Compares two images, uint8 [H, W, 3] RGB of one size."""
    small = [_small(image) for image in (before, after)]
    greys = [cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for image in small]
    alike = _alike(*greys)
    view = _cropped(before, after) if alike < MIN_ALIKE else None
    if view is not None:
        seen = compare(*_in_one_view(before, after, view))
        return replace(seen, change=CROPS[_zoom(view) < 1], view=view)
    gain = float(np.exp(np.median(np.log((greys[1] + 8) / (greys[0] + 8)))))
    change = _change(small, gain, _sharper(before, after, gain)) if alike >= MIN_ALIKE else ""
    if change in COLOURS:
        small = [np.repeat(grey[..., None], 3, axis=2) for grey in greys]
    return Pictures(alike, change, gain, small[0], small[1] / gain)


def _cropped(before: np.ndarray, after: np.ndarray) -> np.ndarray | None:
    """The view of a picture, one of which is a part of the other; see `Pictures.view`."""
    size = (POINTS_SIDE, POINTS_SIDE)
    finder = cv2.SIFT_create(POINTS)  # type: ignore[attr-defined]
    points, looks = zip(
        *(
            finder.detectAndCompute(cv2.cvtColor(cv2.resize(image, size), cv2.COLOR_RGB2GRAY), None)
            for image in (before, after)
        ),
        strict=True,
    )
    if any(look is None or len(look) < MIN_POINTS for look in looks):
        return None
    first_looks, second_looks = looks
    candidates = cv2.BFMatcher().knnMatch(first_looks, second_looks, k=2)
    pairs = [first for first, second in candidates if first.distance < RATIO * second.distance]
    if len(pairs) < MIN_POINTS:
        return None
    first_places, second_places = [
        np.array([ends[number].pt for number in numbers], np.float32) / POINTS_SIDE
        for ends, numbers in zip(
            points,
            ([one.queryIdx for one in pairs], [one.trainIdx for one in pairs]),
            strict=True,
        )
    ]
    view, fits = cv2.estimateAffinePartial2D(
        first_places,
        second_places,
        method=cv2.RANSAC,
        ransacReprojThreshold=MAX_ERROR / POINTS_SIDE,
    )
    if view is None or fits.sum() < max(MIN_POINTS, MIN_SHARE * len(pairs)):
        return None
    turn, zoom = abs(np.degrees(np.arctan2(view[1, 0], view[0, 0]))), _zoom(view)
    is_cropped = max(zoom, 1 / zoom) > MIN_ZOOM and turn < MAX_TURN
    return np.asarray(view) if is_cropped else None


def _zoom(view: np.ndarray) -> float:
    return float(np.hypot(view[0, 0], view[1, 0]))


def _in_one_view(
    before: np.ndarray, after: np.ndarray, view: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Both images, uint8 [H, W, 3], of the part that both show: the larger one is cropped."""
    height, width = before.shape[:2]
    scale = np.array([[1, width / height], [height / width, 1]])
    moved = np.concatenate((view[:, :2] * scale, view[:, 2:] * [[width], [height]]), axis=1)
    options = {"flags": cv2.INTER_LINEAR, "borderMode": cv2.BORDER_REPLICATE}
    if _zoom(view) > 1:
        return cv2.warpAffine(before, moved, (width, height), **options), after
    back = cv2.invertAffineTransform(moved)
    return before, cv2.warpAffine(after, back, (width, height), **options)


def _color(pixels: np.ndarray) -> str:
    """The name of the color of most pixels, float [N, 3] RGB in 0 … 255; empty for none."""
    if not len(pixels):
        return ""
    rgb = (pixels[None] / 255).clip(0, 1).astype(np.float32)
    hue, saturation, value = cv2.cvtColor(rgb, cv2.COLOR_RGB2HSV)[0].T
    colored = (saturation >= MIN_SATURATION) & (value >= MIN_VALUE)
    is_of = {name: (low <= hue) & (hue < high) for name, (low, high) in HUES.items()}
    is_of["red"] = ~np.logical_or.reduce(list(is_of.values()))
    shares = {name: float((of & colored).mean()) for name, of in is_of.items()}
    best = max(shares, key=lambda name: shares[name])
    return best if shares[best] >= MOST else ""


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
