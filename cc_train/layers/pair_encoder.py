"""Grid features of two images → what differs between them; each image is adapted once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cc_train.layers.pair_comparison import Changes, Comparison, Residual


@dataclass(frozen=True)
class Config:
    """Sizes. channels: of the backbone's features. rows, columns: of their grid."""

    channels: int
    rows: int
    columns: int
    width: int = 128
    heads: int = 4
    dropout: float = 0.1
    feature_dropout: float = 0.0


class FeatureComparison(Comparison):
    """Features float [N, C, rows, columns] of images → what differs between pairs of them.

    Their channels are standardised and adapted to the width of the comparison first. mean, std: of
    each channel over the training data. feature_dropout: the share of channels left out in
    training; the other sizes as in `Comparison`.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        channels: int,
        width: int,
        grid: tuple[int, int],
        heads: int,
        dropout: float,
        feature_dropout: float,
    ) -> None:
        super().__init__(width, grid, heads, dropout)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.feature_dropout = nn.Dropout2d(feature_dropout)  # whole channels
        self.adapter = nn.Sequential(nn.Conv2d(channels, width, 1), Residual(width))

    def images(self, features: Tensor) -> Tensor:
        """Adapted features [N, D, rows, columns] of those of a backbone, [N, C, rows, columns]."""
        standard = (features.float() - self.mean[:, None, None]) / self.std[:, None, None]
        out: Tensor = self.adapter(self.feature_dropout(standard))
        return out

    def changes(self, features: Tensor) -> Changes:
        """What differs between the two images of features [B, 2, C, rows, columns]."""
        images = self.images(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        changes: Changes = self(images[:, 0], images[:, 1])
        return changes


class PairEncoder(FeatureComparison):
    """The encoder of captioners of pairs.

    spread: over the training data, the deviation of the mean of a channel over an image.
    """

    spread: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__(
            config.channels,
            config.width,
            (config.rows, config.columns),
            config.heads,
            config.dropout,
            config.feature_dropout,
        )
        self.config = config
        self.register_buffer("spread", torch.ones(config.channels))
