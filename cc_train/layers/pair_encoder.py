"""Grid features of two images → what differs between them; each image is adapted once."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.layers.attention_sizes import AttentionSizes
from cc_train.layers.pair_comparison import Changes, Comparison, Residual


class EncoderSettings(AttentionSizes):
    """Sizes of the encoder of pairs."""

    width: int = Field(128, ge=8, multiple_of=8)
    """Channels; a multiple of `heads`."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout of the vectors from which facts are read."""
    feature_dropout: float = Field(0.0, ge=0, lt=1)
    """The share of the backbone's channels that training leaves out of an image."""
    places: bool = False
    """Whether two tokens tell the decoder where the change is, before and after. Captions that say
    "on the left" of the picture need them."""


def feature_adapter(channels: int, width: int) -> nn.Sequential:
    """Standardised features [N, C, rows, columns] → [N, width, rows, columns]."""
    return nn.Sequential(nn.Conv2d(channels, width, 1), Residual(width))


class FeatureComparison(Comparison):
    """Features float [N, C, rows, columns] of images → what differs between pairs of them.

    Their channels are standardised and adapted to the width of the comparison first. mean, std: of
    each channel over the training data.

    Args:
        grid: Channels, rows and columns of the features.
        sizes: Of the comparison.
        vocabulary: The facts that are read.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        grid: tuple[int, int, int],
        sizes: EncoderSettings,
        vocabulary: FactVocabulary = SOLIDS,
    ) -> None:
        channels, rows, columns = grid
        super().__init__(
            sizes.width, (rows, columns), sizes.heads, sizes.dropout, vocabulary, sizes.places
        )
        self.sizes = sizes
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))
        self.feature_dropout = nn.Dropout2d(sizes.feature_dropout)  # whole channels
        self.adapter = feature_adapter(channels, sizes.width)

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

    Args:
        spread: Over the training data, the deviation of the mean of a channel over an image.
    """

    spread: Tensor

    def __init__(
        self,
        grid: tuple[int, int, int],
        sizes: EncoderSettings,
        vocabulary: FactVocabulary = SOLIDS,
    ) -> None:
        super().__init__(grid, sizes, vocabulary)
        self.register_buffer("spread", torch.ones(grid[0]))
