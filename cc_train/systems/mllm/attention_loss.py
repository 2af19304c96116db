"""Attention control: a loss that draws attention over an image to the changed area.

Source of the loss: the DAVIR paper, equations 6 and 7. Its equation 7 takes a softmax of attention
that is a softmax already, which leaves next to no gradient; `attention_to_mask` has the same
direction without that (docs/mllm.md).
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cc_train.systems.mllm.attention_tap import Rows

Form = Literal[
    "attention_to_mask", "literal", "logits", "mask_to_attention", "mse", "cross_entropy"
]
EPSILON = 1e-3  # what a place outside of the mask keeps of the target
SIGMA, TAPS = 1.0, 5  # of the blur, in places of the grid
TINY = 1e-12


def soft_mask(mask: np.ndarray, grid: tuple[int, int], taps: int = TAPS) -> np.ndarray:
    """The mask on a grid, blurred: float32 [rows, columns], 0 to 1.

    Args:
        mask: 0 and 1, [H, W]. A cell of the grid has the mean over its area, even if its edges are
            within a pixel.
    """
    return blurred(pooled(mask, grid), taps)


def pooled(mask: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Means of a mask [H, W] over the cells of a grid, float64 [rows, columns]."""
    rows, columns = (_shares(size, cells) for size, cells in zip(mask.shape, grid, strict=True))
    means: np.ndarray = rows @ mask.astype(np.float64) @ columns.T
    return means


def _shares(size: int, cells: int) -> np.ndarray:
    """Weight of each of `size` pixels in the mean of each of `cells` equal cells."""
    edges = np.arange(cells + 1) * (size / cells)
    pixels = np.arange(size)
    inside = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares: np.ndarray = np.clip(inside, 0, None) * (cells / size)
    return shares


def blurred(values: np.ndarray, taps: int = TAPS) -> np.ndarray:
    """Values [rows, columns], float32, blurred by a Gaussian of SIGMA cells, mirrored at edges."""
    reach = taps // 2
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / SIGMA) ** 2)
    kernel /= kernel.sum()
    padded = np.pad(values, reach, mode="reflect")
    for axis in (0, 1):
        windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis)
        padded = windows @ kernel
    return padded.astype(np.float32)


def control(rows: Rows, mask: Tensor, form: Form) -> Tensor:
    """Distance of attention from the masks, float32 [B].

    Args:
        rows: Attention over the places of an image, [B, N].
        mask: Soft masks of the same places, float [B, N].
    """
    attention = rows.probabilities / rows.probabilities.sum(-1, keepdim=True).clamp_min(TINY)
    target = (mask + EPSILON) / (mask + EPSILON).sum(-1, keepdim=True)
    if form == "literal":
        return _divergence(rows.probabilities.log_softmax(-1), mask.log_softmax(-1))
    if form == "logits":
        return _divergence(rows.scores.log_softmax(-1), mask.log_softmax(-1))
    if form == "mse":
        return (attention - target).square().mean(-1)
    known, seen = target.log(), attention.clamp_min(TINY).log()
    if form == "mask_to_attention":
        return _divergence(known, seen)
    if form == "cross_entropy":
        return -(target * seen).sum(-1)
    return _divergence(seen, known)


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other) [B] of log-probabilities [B, N]."""
    return (one.exp() * (one - other)).sum(-1)


def of_places(rows: Rows, places: Tensor) -> Rows:
    """The first row of each, [B, R, N], at some keys only: [B, P].

    Args:
        places: Numbers of the keys, int64 [B, P].
    """
    return Rows(*(part[:, 0].gather(1, places) for part in (rows.probabilities, rows.scores)))


def share_inside(attention: Tensor, mask: Tensor) -> Tensor:
    """The share of attention [B, N] on places that a mask [B, N] covers by half or more; [B]."""
    inside = torch.where(mask >= 0.5, attention, 0.0).sum(-1)
    return inside / attention.sum(-1).clamp_min(TINY)
