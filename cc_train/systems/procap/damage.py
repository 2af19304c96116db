"""Damaged sequences of frames, which stage 1 learns to distinguish from true ones.

Source: ProCap's code. A sequence is damaged in one of four ways with equal chance; where there are
no images, only tokens or features, in one of the first two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

WAYS = ("swap", "shuffle", "colour", "affine")
WAYS_WITHOUT_IMAGES = WAYS[:2]
MAX_ROTATION_DEGREES, MAX_SHIFT, MAX_SCALE, MAX_COLOUR = 30.0, 0.1, 0.1, 0.5


@dataclass(frozen=True)
class Damage:
    """How a sequence of T frames is damaged: by one altered frame, or by another order.

    Attributes:
        altered: One more frame.
        order: int64 [T], the number of the frame at each position; T is the altered one. So a
            network that sees each frame by itself processes T + 1 frames for both sequences.
    """

    altered: np.ndarray
    order: np.ndarray

    def of(self, frames: np.ndarray) -> np.ndarray:
        """The damaged sequence."""
        return np.concatenate((frames, self.altered[None]))[self.order]


def damage(frames: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> Damage:
    """Draws how a sequence is damaged.

    Args:
        frames: Indices int [T, n], features float [T, C, h, w], or images uint8 [T, H, W, 3].
        other: Frames of another sample.
    """
    ways = WAYS if frames.dtype == np.uint8 else WAYS_WITHOUT_IMAGES
    way = ways[int(rng.integers(len(ways)))]
    if way == "swap":
        return swap(frames, other, rng)
    if way == "shuffle":
        return shuffle(frames, rng)
    number = int(rng.integers(len(frames)))
    change = shift_colour if way == "colour" else warp
    return _replaced(len(frames), number, change(frames[number], rng))


def swap(frames: np.ndarray, other: np.ndarray, rng: np.random.Generator) -> Damage:
    """A random frame replaced by a random frame of another sample."""
    altered = other[rng.integers(len(other))]
    return _replaced(len(frames), int(rng.integers(len(frames))), altered)


def shuffle(frames: np.ndarray, rng: np.random.Generator) -> Damage:
    """Frames in another order than their own; all other orders are equally likely."""
    assert len(frames) > 1
    own = np.arange(len(frames))
    order = own
    while (order == own).all():
        order = rng.permutation(len(frames))
    return Damage(frames[0], order)


def _replaced(count: int, number: int, altered: np.ndarray) -> Damage:
    order = np.arange(count)
    order[number] = count
    return Damage(altered, order)


def shift_colour(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An image uint8 [H, W, 3], all channels or one made lighter or darker by up to 0.5 of 255."""
    shift = rng.uniform(-MAX_COLOUR, MAX_COLOUR) * 255
    which = int(rng.integers(4))  # 3: all
    shifted = image.astype(np.float32)
    shifted[..., which if which < 3 else slice(None)] += shift
    return shifted.clip(0, 255).round().astype(np.uint8)


def warp(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An image uint8 [H, W, 3] rotated, moved and scaled a little, its borders reflected."""
    angle = math.radians(rng.uniform(-MAX_ROTATION_DEGREES, MAX_ROTATION_DEGREES))
    dx, dy = rng.uniform(-MAX_SHIFT, MAX_SHIFT, 2)
    scale = rng.uniform(1 - MAX_SCALE, 1 + MAX_SCALE)
    matrix = affine(angle, float(dx), float(dy), scale)
    pixels = torch.tensor(image).permute(2, 0, 1)[None].float()
    warped = warp_by(pixels, matrix)[0].permute(1, 2, 0)
    rounded: np.ndarray = warped.round().clamp(0, 255).to(torch.uint8).numpy()
    return rounded


def affine(angle: float, dx: float, dy: float, scale: float) -> torch.Tensor:
    """The affine map [1, 2, 3] from positions in the warped image to positions in the image.

    Coordinates run from −1 to 1.

    Args:
        angle: In radians.
        dx, dy: In these coordinates.
    """
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return torch.tensor([[[cos, -sin, dx], [sin, cos, dy]]])


def warp_by(images: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Images [N, C, H, W] resampled by matrices [N, 2, 3]."""
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
