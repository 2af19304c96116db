"""A caption decoder at work: one position at a time, its weights laid out for that.

What `CaptionDecoder.forward` computes of a position, given those before it: keys and values of
earlier words are kept, and no keys and values of the encoder's output are ever made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.models.cpu.linear import Packed
from cc_train.layers.caption_decoder import Attention, CaptionDecoder, Layer


@dataclass
class KVCache:
    """Keys and values of a sentence's words so far, [layers, B, heads, length, D / heads].

    Those of `count` positions are there; `CachedDecoder.step` adds one.
    """

    keys: Tensor
    values: Tensor
    count: int = 0

    def select(self, rows: Tensor) -> KVCache:
        """The cache of some sentences, int64 [B']."""
        return KVCache(self.keys[:, rows], self.values[:, rows], self.count)


class CachedDecoder:
    """A decoder as its weights are now: make another one when they have changed. No dropout."""

    def __init__(self, decoder: CaptionDecoder) -> None:
        self.config, self.length = decoder.config, decoder.config.length
        self._words, self._positions = decoder.out.weight.detach(), decoder.positions
        self._layers = [_Layer(layer) for layer in cast("Iterable[Layer]", decoder.layers)]
        self._out = Packed(decoder.out.weight, decoder.out.bias)

    def start(self, memory: Tensor) -> KVCache:
        """What is kept of no word yet, of as many sentences as memory [B, N, width] has."""
        config = self.config
        head = config.width // config.heads
        shape = (config.layers, len(memory), config.heads, config.length, head)
        return KVCache(memory.new_empty(shape), memory.new_empty(shape))

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, words] of what follows ids [B], which follow those in `cache` and join them.

        memory: the encoder's output, [B, N, width].
        """
        x = math.sqrt(self.config.width) * F.embedding(ids, self._words)
        x = x + self._positions[cache.count]
        cache.count += 1
        for layer, keys, values in zip(self._layers, cache.keys, cache.values, strict=True):
            x = layer(x, memory, keys[:, :, : cache.count], values[:, :, : cache.count])
        return self._out(x)


class _Layer:
    """A layer of the decoder, of x [B, D]."""

    def __init__(self, layer: Layer) -> None:
        self._self_attention, self._cross_attention = (
            _SelfAttention(layer.selfattn.layer),
            _CrossAttention(layer.attention.layer),
        )
        hidden = layer.feedforward.layer
        self._widen = Packed(hidden.linear1.weight, hidden.linear1.bias)
        self._narrow = Packed(hidden.linear2.weight, hidden.linear2.bias)
        self._norms = [
            part.layernorm for part in (layer.selfattn, layer.attention, layer.feedforward)
        ]

    def __call__(self, x: Tensor, memory: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        norm_self, norm_cross, norm_hidden = self._norms
        x = norm_self(x + self._self_attention(x, keys, values))
        x = norm_cross(x + self._cross_attention(x, memory))
        out: Tensor = norm_hidden(x + self._narrow(F.relu(self._widen(x))))
        return out


class _SelfAttention:
    """Attention to the words so far."""

    def __init__(self, attention: Attention) -> None:
        weights = (attention.wq.weight, attention.wk.weight, attention.wv.weight)
        self._joined, self._out = Packed(torch.cat(weights)), Packed(attention.wo.weight)
        self._heads, self._scale = attention.heads, attention.scale

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """keys, values: [B, heads, L, D / heads], whose last position is put in here."""
        query, key, value = self._joined(x).unflatten(1, (3, self._heads, -1)).unbind(1)
        keys[:, :, -1], values[:, :, -1] = key, value
        mixed = F.scaled_dot_product_attention(query[:, :, None], keys, values, scale=self._scale)
        return self._out(mixed.flatten(1))


class _CrossAttention:
    """Attention to the encoder's output, whose keys and values are never made.

    q · (K m) = (Kᵀ q) · m, and values likewise: for one query and a long memory it is much less to
    bring the query to the memory than the memory to the query.
    """

    def __init__(self, attention: Attention) -> None:
        heads = attention.heads
        keys, values = (w.weight.detach().unflatten(0, (heads, -1)) for w in
                        (attention.wk, attention.wv))  # fmt: skip
        self._to_memory = keys  # [heads, D / heads, D]
        self._from_memory = values.transpose(1, 2).contiguous()  # [heads, D, D / heads]
        self._query, self._out = Packed(attention.wq.weight), Packed(attention.wo.weight)
        self._heads, self._scale = heads, attention.scale

    def __call__(self, x: Tensor, memory: Tensor) -> Tensor:
        query = self._query(x).unflatten(1, (self._heads, -1)).transpose(0, 1)
        looking = torch.bmm(query, self._to_memory).transpose(0, 1)  # [B, heads, D]
        # A sentence's heads are the rows of one query: they all look at the same memory.
        mixed = F.scaled_dot_product_attention(
            looking[:, None], memory[:, None], memory[:, None], scale=self._scale
        )
        values = torch.bmm(mixed[:, 0].transpose(0, 1), self._from_memory)
        return self._out(values.transpose(0, 1).flatten(1))
