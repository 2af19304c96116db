"""SCORER's encoder: reconstructs each image from the other one, and takes their difference.

Names follow the public code's `change_detector_state`. Source: Tu et al., ICCV 2023, and its code.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.layers.attention_sizes import AttentionSizes

EPS = 1e-6
MAX_SCALE = math.log(100)
POSITIONS = 14  # rows and columns that the public code has positions for


class EncoderSettings(AttentionSizes):
    """Sizes of the encoder."""

    width: int = Field(512, ge=8, multiple_of=2)
    """Channels; a multiple of `heads`."""
    heads: int = Field(8, ge=1)
    """Attention heads."""
    layers: int = Field(2, ge=1)
    """Layers."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout."""
    largest_grid: int = Field(14, ge=1)
    """Features on a finer grid are averaged down to at most so many rows and columns."""
    standardise: bool = False
    """Standardise the channels of the features first, which neither paper nor code does."""

    def grid_of(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of features, reduced by the smallest factor that makes them no more than
        `largest_grid`.

        Raises:
            UserError: If they are not divisible by it: a larger factor would lose more detail.
        """
        factor = -(-max(rows, columns) // self.largest_grid)
        if rows % factor or columns % factor:
            raise UserError(
                f"a grid of {rows} × {columns} features is not divisible by {factor}, which "
                f"encoder.largest_grid={self.largest_grid} requires",
                "Change encoder.largest_grid, or build the shards with another image_size",
            )
        return rows // factor, columns // factor


class Queries(NamedTuple):
    """Vectors that the last layer matches, [B, N, width] each.

    Attributes:
        scale: Factor on a matching.
    """

    before: Tensor
    after: Tensor
    before_keys: Tensor
    after_keys: Tensor
    scale: Tensor


class EncodedPairs(NamedTuple):
    """The encoding of B pairs, with N = rows · columns places each.

    Attributes:
        before, after: Projected features with positions, [B, N, width].
        difference: What the decoder attends to, [B, N, width].
        queries: For the contrast.
    """

    before: Tensor
    after: Tensor
    difference: Tensor
    queries: Queries


class Attention(nn.Module):
    """Multi-head attention to the other image without a projection after it, and a norm.

    Args:
        logit_scale: The logarithm of the factor on the matching of queries and keys.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.layer_norm = nn.LayerNorm(width, eps=EPS)
        self.logit_scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, N, width] reconstructed from `other`, the queries of x, the keys of `other`."""
        query, key = self.query(x), self.key(other)
        mixed = F.scaled_dot_product_attention(
            split(query, self.heads),
            split(key, self.heads),
            split(self.value(other), self.heads),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.layer_norm(mixed.transpose(1, 2).flatten(2) + x), query, key


class Layer(nn.Module):
    """A layer of the encoder; its weights serve both directions."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)

    def forward(self, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor, Queries]:
        """Both images, each reconstructed from the other one's input, and the vectors to match."""
        both, other = torch.cat((before, after)), torch.cat((after, before))
        attended, query, key = self.attention(both, other)
        new_before, new_after = attended.chunk(2)
        of_before, of_after = query.chunk(2)
        after_keys, before_keys = key.chunk(2)  # of `other`: after comes first
        scale = self.attention.logit_scale.exp()
        return new_before, new_after, Queries(of_before, of_after, before_keys, after_keys, scale)


class ChangeDetector(nn.Module):
    """Features of two images → their difference at each place.

    Args:
        channels: Of the features.
        grid: Rows and columns of the features.
        sizes: Of the encoder.
    """

    def __init__(self, channels: int, grid: tuple[int, int], sizes: EncoderSettings) -> None:
        super().__init__()
        self.grid, self.sizes = grid, sizes
        width, positions = sizes.width, max(POSITIONS, *grid)
        self.img = nn.Sequential(nn.Conv2d(channels + 2, width, 1))
        self.w_embedding = nn.Embedding(positions, width // 2)
        self.h_embedding = nn.Embedding(positions, width // 2)
        self.scorer = nn.ModuleList(
            Layer(width, sizes.heads, sizes.dropout) for _ in range(sizes.layers)
        )
        self.embed_fc = nn.Sequential(
            nn.Linear(2 * width, width), nn.Dropout(sizes.dropout), nn.ReLU()
        )

    def forward(self, before: Tensor, after: Tensor) -> EncodedPairs:
        """The encoding of features [B, channels, rows, columns] of both images."""
        projected_before, projected_after = self.project(torch.cat((before, after))).chunk(2)
        one, other = projected_before, projected_after
        for layer in self.scorer:
            one, other, queries = layer(one, other)
        difference = self.embed_fc(torch.cat((one, other), dim=2))
        return EncodedPairs(projected_before, projected_after, difference, queries)

    def project(self, features: Tensor) -> Tensor:
        """Features [N, channels, rows, columns] → [N, rows · columns, width], with positions."""
        rows, columns = features.shape[2:]
        x: Tensor = self.img(torch.cat((features, coordinates(features)), dim=1))
        across = self.w_embedding.weight[:columns].expand(rows, -1, -1)
        down = self.h_embedding.weight[:rows, None].expand(-1, columns, -1)
        positions = torch.cat((across, down), dim=2).flatten(0, 1)
        return x.flatten(2).transpose(1, 2) + positions

    def clamp_scale(self) -> None:
        """Bounds the temperature of the last layer, the only one whose vectors are matched."""
        last = self.scorer[-1]
        assert isinstance(last, Layer)
        last.attention.logit_scale.data.clamp_(max=MAX_SCALE)


def coordinates(features: Tensor) -> Tensor:
    """Two planes [N, 2, rows, columns]: from −1 on, by columns and by rows; 1 is not reached."""
    rows, columns = features.shape[2:]
    across = 2 * torch.arange(columns, device=features.device, dtype=features.dtype) / columns - 1
    down = 2 * torch.arange(rows, device=features.device, dtype=features.dtype) / rows - 1
    planes = torch.stack((across.expand(rows, -1), down[:, None].expand(-1, columns)))
    return planes.expand(len(features), -1, -1, -1)


def split(x: Tensor, heads: int) -> Tensor:
    """[B, N, width] → [B, heads, N, width / heads]."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)
