"""Grid features of two images → what differs between them; each image is adapted once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cc_train.layers.comparison import Comparison, Residual


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


class PairEncoder(Comparison):
    """Features float [N, C, rows, columns] → changes of pairs of them.

    mean, std: of each channel over the training data, which features are standardised by. spread:
    the deviation of a channel's mean over an image.
    """

    mean: Tensor
    std: Tensor
    spread: Tensor

    def __init__(self, config: Config) -> None:
        grid = config.rows, config.columns
        super().__init__(config.width, grid, config.heads, config.dropout)
        self.config = config
        self.register_buffer("mean", torch.zeros(config.channels))
        self.register_buffer("std", torch.ones(config.channels))
        self.register_buffer("spread", torch.ones(config.channels))
        self.feature_dropout = nn.Dropout2d(config.feature_dropout)  # whole channels
        self.adapter = nn.Sequential(
            nn.Conv2d(config.channels, config.width, 1), Residual(config.width)
        )

    def images(self, features: Tensor) -> Tensor:
        """Adapted features [N, D, rows, columns] of those of the backbone."""
        standard = (features.float() - self.mean[:, None, None]) / self.std[:, None, None]
        out: Tensor = self.adapter(self.feature_dropout(standard))
        return out
