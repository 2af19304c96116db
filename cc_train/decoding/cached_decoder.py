"""A caption decoder for inference: one position at a time, its weights laid out for that.

It computes what `CaptionDecoder.forward` gives at a position, from the cached keys and values of
earlier positions. Keys and values of the encoder's output are never computed.
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
    """Keys and values of the words so far, [layers, B, heads, length, D / heads] each.

    count: how many positions are filled; `CachedDecoder.step` fills one more.
    """

    keys: Tensor
    values: Tensor
    count: int = 0

    def select(self, rows: Tensor) -> KVCache:
        """The cache of the sentences with these row numbers, int64 [B']."""
        return KVCache(self.keys[:, rows], self.values[:, rows], self.count)


class CachedDecoder:
    """A `NextWord` with a copy of a decoder's weights, without dropout.

    It does not follow the decoder: when the weights change, another one has to be made.
    """

    def __init__(self, decoder: CaptionDecoder) -> None:
        self.sizes, self.length = decoder.sizes, decoder.sizes.length
        self._words, self._positions = decoder.out.weight.detach(), decoder.positions
        self._layers = [_Layer(layer) for layer in cast("Iterable[Layer]", decoder.layers)]
        self._out = Packed(decoder.out.weight, decoder.out.bias)

    def start(self, memory: Tensor) -> KVCache:
        """An empty cache for the B sentences of the encoder's output, memory [B, N, width]."""
        sizes = self.sizes
        head = sizes.width // sizes.heads
        shape = (sizes.layers, len(memory), sizes.heads, sizes.length, head)
        return KVCache(memory.new_empty(shape), memory.new_empty(shape))

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, words] of the word after ids int64 [B]; their keys and values join `cache`.

        memory: the encoder's output, [B, N, width].
        """
        x = math.sqrt(self.sizes.width) * F.embedding(ids, self._words)
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
