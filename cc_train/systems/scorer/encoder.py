"""SCORER's encoder: reconstructs each image from the other one, and takes their difference.

Names follow the public code's `change_detector_state`. Source: Tu et al., ICCV 2023, and its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.models.cpu.linear import Linear

EPS = 1e-6
MAX_SCALE = math.log(100)
POSITIONS = 14  # rows and columns that the public code has positions for


@dataclass(frozen=True)
class Config:
    """Sizes of the encoder.

    channels: of the features. rows, columns: of their grid. width: channels within. positions:
    number of rows and columns with positions, at least those of the grid.
    """

    channels: int = 1024
    rows: int = 14
    columns: int = 14
    width: int = 512
    heads: int = 8
    layers: int = 2
    dropout: float = 0.1
    positions: int = POSITIONS

    def check(self) -> None:
        """Raises UserError if the width cannot be divided among the heads, or is odd."""
        if self.width % self.heads or self.width % 2:
            raise UserError(
                f"encoder.width ({self.width}) has to be even and divisible by encoder.heads "
                f"({self.heads})",
                "Change one of them",
            )


class Queries(NamedTuple):
    """Vectors that the last layer matches, [B, N, width] each. scale: factor on a matching."""

    before: Tensor
    after: Tensor
    before_keys: Tensor
    after_keys: Tensor
    scale: Tensor


class EncodedPairs(NamedTuple):
    """The encoding of B pairs, with N = rows · columns places each.

    before, after: projected features with positions, [B, N, width]. difference: what the decoder
    attends to, [B, N, width]. queries: for the contrast.
    """

    before: Tensor
    after: Tensor
    difference: Tensor
    queries: Queries


class Attention(nn.Module):
    """Multi-head attention to the other image without a projection after it, and a norm.

    logit_scale: the logarithm of the factor on the matching of queries and keys.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (Linear(width, width) for _ in range(3))
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
    """Features of two images → their difference at each place."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.img = nn.Sequential(nn.Conv2d(config.channels + 2, width, 1))
        self.w_embedding = nn.Embedding(config.positions, width // 2)
        self.h_embedding = nn.Embedding(config.positions, width // 2)
        self.scorer = nn.ModuleList(
            Layer(width, config.heads, config.dropout) for _ in range(config.layers)
        )
        self.embed_fc = nn.Sequential(
            Linear(2 * width, width), nn.Dropout(config.dropout), nn.ReLU()
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

    @classmethod
    def config_of(
        cls, shapes: Mapping[str, tuple[int, ...]], heads: int, grid: tuple[int, int]
    ) -> Config:
        """The sizes of a checkpoint, by its tensors' shapes. Raises KeyError if it is none."""
        width, channels = shapes["img.0.weight"][:2]
        return Config(
            channels=channels - 2,
            rows=grid[0],
            columns=grid[1],
            width=width,
            heads=heads,
            layers=len({name.split(".")[1] for name in shapes if name.startswith("scorer.")}),
            positions=shapes["w_embedding.weight"][0],
        )


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
