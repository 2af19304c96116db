"""Pairs of images with pasted things, whose changes are known without any label.

A pair is one image, and the same image seen by a camera that moved a little, in another light. Into
it things are pasted that are cut out of another image: into one end or the other, into both at the
same place, which is no change, or into both at different places; or a place of one end gets other
colors. Stage 1 then tells for every place what of this happened there (`losses.local`). This is
ours, and not in the paper; its consistency of whole frames is the same idea.

The idea of learning from what was pasted: Li et al., CutPaste, CVPR 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

KINDS = ("none", "appeared", "vanished", "recolored", "moved")
NONE, APPEARED, VANISHED, RECOLORED, MOVED = range(len(KINDS))

# What is done to a thing, and how often.
WAYS = ("both", "appeared", "vanished", "recolored", "moved")
CHANCES = (0.35, 0.15, 0.15, 0.2, 0.15)
MAX_THINGS = 3
COVERED = 0.25  # of a place's area, from which on it counts as changed
VISIBLE = 12  # levels of 255, by which colors differ to the eye
TRIES = 6  # the place of most contrast is taken, since floors are no things

# In sides of the image.
THING = (0.1, 0.32)
SLIP = 0.03  # between the ends of what did not change
MOVE = (0.09, 0.27)
CAMERA, TURN = 0.06, 0.04  # of all corners alike, and of each by itself
LIGHT, RAMP, TINT = 0.08, 0.08, 0.02


@dataclass(frozen=True)
class Pasted:
    """A pair and what was changed in it.

    Attributes:
        ends: Before and after, uint8 [2, H, W, 3] RGB.
        kinds: What happened at each place, of `KINDS`, int64 [rows, columns].
    """

    ends: np.ndarray
    kinds: np.ndarray


def paste(
    image: np.ndarray, source: np.ndarray, grid: tuple[int, int], rng: np.random.Generator
) -> Pasted:
    """Draws a pair of an image and its changes.

    Args:
        image: uint8 [H, W, 3].
        source: What things are cut out of, uint8 of the same shape.
        grid: Rows and columns of places.
    """
    ends = [image.astype(np.float32), _seen_again(image, rng)]
    if rng.random() < 0.5:
        ends.reverse()
    canvas = _Canvas(np.stack(ends))
    for _ in range(int(rng.integers(1, MAX_THINGS + 1))):
        _change(canvas, source, WAYS[int(rng.choice(len(WAYS), p=CHANCES))], rng)
    pixels = np.clip(np.rint(canvas.ends), 0, 255).astype(np.uint8)
    return Pasted(pixels, canvas.kinds(grid))


class _Canvas:
    """Both ends, float32 [2, H, W, 3], and how far each pixel is of each kind, [5, H, W]."""

    def __init__(self, ends: np.ndarray) -> None:
        self.ends = ends
        self.marks = np.zeros((len(KINDS), *ends.shape[1:3]), np.float32)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.marks.shape[1:]
        return height, width

    def put(self, end: int, corner: np.ndarray, patch: np.ndarray, mask: np.ndarray) -> None:
        """Pastes into one end at (row, column)."""
        part = self.ends[end][_window(corner, mask)]
        part += (patch - part) * mask[..., None]

    def mark(self, kind: int, corner: np.ndarray, mask: np.ndarray) -> None:
        """Notes what happened where the mask is, in place of what happened there before."""
        part = self.marks[(slice(None), *_window(corner, mask))]
        part *= 1 - mask
        part[kind] += mask

    def kinds(self, grid: tuple[int, int]) -> np.ndarray:
        """The kind that has the largest share of each place, int64 [rows, columns]."""
        rows, columns = grid
        shares = np.stack(
            [cv2.resize(one, (columns, rows), interpolation=cv2.INTER_AREA) for one in self.marks]
        )
        shares[NONE] = COVERED
        kinds: np.ndarray = shares.argmax(0).astype(np.int64)
        return kinds


def _change(canvas: _Canvas, source: np.ndarray, way: str, rng: np.random.Generator) -> None:
    """Changes one thing, or the same in both ends."""
    mask = _shape(canvas.size, rng)
    room = np.array(canvas.size) - mask.shape
    side = min(canvas.size)
    corner = rng.integers(0, room + 1)
    patch = source[_window(_of_contrast(source, mask, rng), mask)].astype(np.float32)
    if way == "recolored":
        end = int(rng.integers(2))
        corner = _of_contrast(canvas.ends[end], mask, rng)
        before = canvas.ends[end][_window(corner, mask)]
        patch = _other_colors(before, rng)
        differs = (np.abs(patch - before).max(2) > VISIBLE).astype(np.float32)  # grey stays grey
        canvas.put(end, corner, patch, mask)
        canvas.mark(RECOLORED, corner, mask * differs)
    elif way in ("appeared", "vanished"):
        canvas.put(1 if way == "appeared" else 0, corner, patch, mask)
        canvas.mark(APPEARED if way == "appeared" else VANISHED, corner, mask)
    else:
        low, high = (0.0, SLIP) if way == "both" else MOVE
        step = rng.uniform(low, high, 2) * side * rng.choice((-1, 1), 2)
        other = np.clip(corner + np.rint(step).astype(int), 0, room)
        for end, place in enumerate((corner, other)):
            canvas.put(end, place, patch, mask)
            canvas.mark(NONE if way == "both" else MOVED, place, mask)


def _window(corner: np.ndarray, mask: np.ndarray) -> tuple[slice, slice]:
    """The rows and columns that a mask covers."""
    (top, left), (height, width) = corner, mask.shape
    return slice(top, top + height), slice(left, left + width)


def _shape(size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A soft ellipse, rectangle or pentagon, float32 [h, w] in [0, 1]."""
    low, high = (max(3, round(share * min(size))) for share in THING)
    height, width = (int(one) for one in rng.integers(low, high + 1, 2))
    mask = np.zeros((height, width), np.float32)
    kind = int(rng.integers(3))
    if kind == 0:
        middle, axes = (width // 2, height // 2), (max(1, width // 2 - 1), max(1, height // 2 - 1))
        cv2.ellipse(mask, middle, axes, 0, 0, 360, 1.0, -1)
    elif kind == 1:
        mask[1:-1, 1:-1] = 1
    else:
        points = np.stack((rng.integers(0, width, 5), rng.integers(0, height, 5)), axis=1)
        cv2.fillPoly(mask, [points.astype(np.int32)], 1.0)
    return cv2.GaussianBlur(mask, (3, 3), 0)


def _of_contrast(image: np.ndarray, mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The corner of a part of the mask's size that has much contrast: the most of some tries."""
    room = np.array(image.shape[:2]) - mask.shape
    corners = rng.integers(0, room + 1, (TRIES, 2))
    spread = [image[_window(corner, mask)].std((0, 1)).sum() for corner in corners]
    best: np.ndarray = corners[int(np.argmax(spread))]
    return best


def _seen_again(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An image by another camera and in another light, float32 [H, W, 3] in [0, 255]."""
    height, width = image.shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    side = np.array([width, height])
    moved = corners + rng.uniform(-CAMERA, CAMERA, 2) * side
    moved += rng.uniform(-TURN, TURN, (4, 2)) * side
    view = cv2.getPerspectiveTransform(corners, moved.astype(np.float32))
    seen = cv2.warpPerspective(
        image.astype(np.float32), view, (width, height), borderMode=cv2.BORDER_REFLECT
    )
    down, right = rng.uniform(-RAMP, RAMP, 2)
    ramp = 1 + down * np.linspace(-1, 1, height)[:, None] + right * np.linspace(-1, 1, width)
    gain = rng.uniform(1 - LIGHT, 1 + LIGHT) * rng.uniform(1 - TINT, 1 + TINT, 3)
    lit: np.ndarray = np.clip(seen * ramp[..., None] * gain, 0, 255).astype(np.float32)
    return lit


def _other_colors(patch: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A part of an image in another hue, and half of the time paler or darker, float32."""
    pixels = np.clip(patch, 0, 255).astype(np.uint8)
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV).astype(np.float32)
    hsv[..., 0] = (hsv[..., 0] + int(rng.integers(25, 156))) % 180  # OpenCV counts half degrees
    if rng.random() < 0.5:
        hsv[..., 1] *= rng.uniform(0.3, 2.5)
    if rng.random() < 0.5:
        hsv[..., 2] *= rng.uniform(0.6, 1.5)
    hsv = np.clip(hsv, 0, (179, 255, 255)).astype(np.uint8)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(np.float32)
