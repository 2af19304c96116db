"""Weights and images of these golden vectors: a tensor's numbers follow from its name alone."""

from __future__ import annotations

import zlib

import numpy as np

# Ends of names and what their numbers are scaled by, so that flows stay within some pixels and
# frames within their range; the first that fits counts.
SCALES = {
    "flow_head.2.weight": 1.5,
    "conv1.weight": 2.5,
    "conv_last2.2.weight": 0.6,
    "bias": 0.05,
}


def value(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A parameter's numbers, float32."""
    numbers = np.random.RandomState((zlib.crc32(name.encode()) + seed) % 2**32)
    spread = numbers.uniform(-1, 1, shape)
    scale = next((factor for end, factor in SCALES.items() if name.endswith(end)), 1.0)
    if "bias_table" in name:
        spread = 0.6 * spread
    elif len(shape) > 1:
        spread = scale * spread * (4 / np.prod(shape[1:])) ** 0.5
    elif name.endswith("bias"):
        spread = scale * spread
    else:  # of a norm, or the slopes of a PReLU
        spread = (1.0 if "norm" in name else 0.2) + 0.1 * spread
    return spread.astype(np.float32)


def images(height: int, width: int, seed: int) -> list[np.ndarray]:
    """Two images float32 [1, 3, height, width]: smooth noise, and the same moved by (4, −2) px."""
    noise = np.random.RandomState(seed).uniform(-1, 1, (3, 5, 5))
    y, x = np.mgrid[0:height, 0:width] / 24.0
    pair = []
    for dx, dy in ((0.0, 0.0), (4 / 24, -2 / 24)):
        waves = np.stack(
            [
                np.sin((i + 1) * (x - dx) + (j + 1) * (y - dy) + 3 * i + j)
                for i in range(5)
                for j in range(5)
            ]
        )
        image = 0.5 + 0.12 * np.einsum("ck,khw->chw", noise.reshape(3, 25), waves)
        pair.append(image.clip(0, 1).astype(np.float32)[None])
    return pair
