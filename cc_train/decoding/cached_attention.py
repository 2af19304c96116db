"""Attention for inference, one position at a time, with weights laid out for that.

Both caption decoders decode with it. Keys and values of the words so far are kept in a `KVCache`;
those of the encoder's output are never made: q · (K m) = (Kᵀ q) · m, and values likewise. For one
query and a long memory it is much less to bring the query to the memory than the memory to the
query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.cpu import Packed


@dataclass
class KVCache:
    """The words so far of B sentences.

    Attributes:
        keys, values: [layers, B, heads, length, width / heads] each.
        looked: The last layer's scores of the memory, [B, length, N], if the decoder keeps them.
        count: How many positions are filled; a decoder's `step` fills one more.
    """

    keys: Tensor
    values: Tensor
    looked: Tensor | None = None
    count: int = 0

    @classmethod
    def empty(
        cls, memory: Tensor, *, layers: int, width: int, heads: int, length: int, looks: bool
    ) -> KVCache:
        """The cache of no words for the sentences of the encoder's output.

        Args:
            memory: The encoder's output, [B, N, D].
            layers: How many layers keep keys and values.
            width: Of the layers.
            heads: Of each attention.
            length: How many positions a sentence has at most.
            looks: Whether scores of the memory are kept.
        """
        shape = (layers, len(memory), heads, length, width // heads)
        looked = memory.new_zeros(len(memory), length, memory.shape[1]) if looks else None
        return cls(memory.new_empty(shape), memory.new_empty(shape), looked)

    def select(self, rows: Tensor) -> KVCache:
        """The cache of the sentences with these row numbers, int64 [B']."""
        looked = None if self.looked is None else self.looked[rows]
        return KVCache(self.keys[:, rows], self.values[:, rows], looked, self.count)


class SelfAttention:
    """Attention to the words so far.

    Args:
        parts: The layers of query, key and value.
        heads: Number of heads.
        out: The layer after the attention; None for no layer.
        scale: What scores are multiplied by; None for one over the root of a head's width.
    """

    def __init__(
        self,
        parts: Sequence[nn.Linear],
        heads: int,
        out: nn.Linear | None = None,
        scale: float | None = None,
    ) -> None:
        biases: list[Tensor] = [part.bias for part in parts if part.bias is not None]
        weights = torch.cat([part.weight for part in parts])
        self._joined = Packed(weights, torch.cat(biases) if biases else None)
        self._out = None if out is None else Packed(out.weight, out.bias)
        self._heads, self._scale = heads, scale

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """[B, D] of x [B, D].

        Args:
            keys, values: [B, heads, L, D / heads], whose last position is put in here.
        """
        query, key, value = self._joined(x).unflatten(1, (3, self._heads, -1)).unbind(1)
        keys[:, :, -1], values[:, :, -1] = key, value
        mixed = F.scaled_dot_product_attention(query[:, :, None], keys, values, scale=self._scale)
        return mixed.flatten(1) if self._out is None else self._out(mixed.flatten(1))


class CrossAttention:
    """Attention to the encoder's output.

    Args:
        query, key, value: The layers of each.
        heads: Number of heads.
        scale: What scores are multiplied by.
        out: The layer after the attention; None for no layer.
    """

    def __init__(
        self,
        query: nn.Linear,
        key: nn.Linear,
        value: nn.Linear,
        heads: int,
        scale: float,
        out: nn.Linear | None = None,
    ) -> None:
        self._query = Packed(query.weight, query.bias)
        self._out = None if out is None else Packed(out.weight, out.bias)
        keys, values = (p.weight.detach().unflatten(0, (heads, -1)) for p in (key, value))
        self._to_memory = keys  # [heads, D / heads, D]
        self._from_memory = values.transpose(1, 2).contiguous()  # [heads, D, D / heads]
        self._key_bias = None if key.bias is None else key.bias.detach().unflatten(0, (heads, -1))
        self._value_bias = None if value.bias is None else value.bias.detach()
        self._heads, self._scale = heads, scale

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        """[B, D] of x [B, D] and memory [B, N, D]."""
        looking = self._looking(self._query(x).unflatten(1, (self._heads, -1)))
        # A sentence's heads are the rows of one query: they all look at the same memory.
        mixed = F.scaled_dot_product_attention(
            looking[:, None], memory[:, None], memory[:, None], scale=self._scale
        )
        return self._gathered(mixed[:, 0])

    def with_scores(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What a call gives, and the scores before the softmax, the mean over heads, [B, N]."""
        query = self._query(x).unflatten(1, (self._heads, -1)) * self._scale  # [B, heads, d]
        scores = torch.bmm(self._looking(query), memory.transpose(1, 2))  # [B, heads, N]
        gathered = self._gathered(torch.bmm(scores.softmax(2), memory))
        looked = scores.mean(1)
        if self._key_bias is not None:  # it adds the same to all places: no softmax sees it
            looked = looked + (query * self._key_bias).sum(2).mean(1, keepdim=True)
        return gathered, looked

    def _looking(self, query: Tensor) -> Tensor:
        """The queries [B, heads, D / heads] brought to the memory, [B, heads, D]."""
        return torch.bmm(query.transpose(0, 1), self._to_memory).transpose(0, 1)

    def _gathered(self, mixed: Tensor) -> Tensor:
        """[B, D] of each head's mean of the memory, [B, heads, D]."""
        values = torch.bmm(mixed.transpose(0, 1), self._from_memory).transpose(0, 1).flatten(1)
        if self._value_bias is not None:
            values = values + self._value_bias
        return values if self._out is None else self._out(values)
