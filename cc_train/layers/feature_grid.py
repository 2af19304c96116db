"""Grid features on a coarser grid, their channels standardised, and how unusual they are."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError

Pooling = Literal["unshuffle", "mean"]


def fold(fine: tuple[int, int], coarse: tuple[int, int]) -> int:
    """How many rows and columns of a fine grid [rows, columns] fall on one of a coarse grid.

    Raises:
        UserError: Where that is no whole number, or not the same for both.
    """
    factor = fine[0] // coarse[0]
    if not factor or fine != (factor * coarse[0], factor * coarse[1]):
        raise UserError(
            f"features of {fine[0]} × {fine[1]} are no whole multiple of the {coarse[0]} × "
            f"{coarse[1]} tokens of a frame",
            "Build the shards with another image_size, features.backbone or tokenize.weights",
        )
    return factor


def to_grid(features: Tensor, grid: tuple[int, int], pooling: Pooling) -> Tensor:
    """Features [N, C, h, w] on a grid [rows, columns], of whose sides h and w are multiples by f.

    unshuffle: [N, C · f², rows, columns], all values of a place, channels outermost. mean: [N, C,
    rows, columns].

    Raises:
        UserError: For other sizes.
    """
    factor = fold((features.shape[2], features.shape[3]), grid)
    if factor == 1:
        return features
    if pooling == "mean":
        return F.avg_pool2d(features, factor)
    return F.pixel_unshuffle(features, factor)


class Standardise(nn.Module):
    """x [..., C] → (x − mean) / std of each channel; both are buffers, float32 [C]."""

    mean: Tensor
    std: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

    def set(self, mean: Tensor, std: Tensor) -> None:
        """Takes the statistics, [C] each."""
        self.mean.copy_(mean)
        self.std.copy_(std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean).div_(self.std)


def ood_score(means: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """How unlike the training images pairs are, float [B]: about 1 for what is like them.

    It is the score of the image with the larger one: the distance of its channel means from those
    of the training images, in standard deviations, squared and averaged over channels.

    Args:
        means: Of each channel over the places of an image, [B, 2, C].
        mean: Of `means` over the training images, [C].
        spread: Their standard deviation, [C].
    """
    return ((means - mean) / spread).square().mean(2).amax(1)
