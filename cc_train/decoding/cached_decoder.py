"""A caption decoder for inference: one position at a time, its weights laid out for that.

It computes what `CaptionDecoder.forward` gives at a position, from the cached keys and values of
earlier positions (see `cached_attention`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.models.cpu import Packed
from cc_train.decoding.cached_attention import CrossAttention, KVCache, SelfAttention
from cc_train.layers.caption_decoder import CaptionDecoder, Layer


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
        return KVCache.empty(
            memory,
            layers=sizes.layers,
            width=sizes.width,
            heads=sizes.heads,
            length=sizes.length,
            looks=False,
        )

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, cache: KVCache) -> Tensor:
        """Logits [B, words] of the word after ids int64 [B]; their keys and values join `cache`.

        Args:
            memory: The encoder's output, [B, N, width].
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
        own, other = layer.selfattn.layer, layer.attention.layer
        self._self_attention = SelfAttention((own.wq, own.wk, own.wv), own.heads, own.wo, own.scale)
        self._cross_attention = CrossAttention(
            other.wq, other.wk, other.wv, other.heads, other.scale, other.wo
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
