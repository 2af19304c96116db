"""SCORER's decoder for inference: one position at a time, with weights laid out for that.

It computes the result of `Speaker.forward` at a position, from the keys and values of the words so
far (see `cc_train.decoding.cached_attention`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.cpu import Packed
from cc_train.decoding.cached_attention import CrossAttention, KVCache, SelfAttention
from cc_train.systems.scorer.decoder import Layer, Speaker


class CachedSpeaker:
    """A `NextWord` of a speaker's weights, some of them copied, without dropout.

    When the speaker's weights change, another one has to be made: this one would mix old and new.
    """

    def __init__(self, speaker: Speaker) -> None:
        self.width, self.sizes, self.length = speaker.width, speaker.sizes, speaker.sizes.length
        core = speaker.core
        linear, norm = cast("nn.Linear", core.fc[0]), core.fc[2]
        # What a word and its place become before the first layer; the norm depends on both.
        with torch.no_grad():
            self._words = F.linear(core.embed.weight, linear.weight, linear.bias)
            self._places = F.linear(core.position_enc.pe, linear.weight)
        self._norm = norm
        self._layers = [_Layer(layer) for layer in cast("Iterable[Layer]", core.layer)]
        self._out = Packed(speaker.logit.weight, speaker.logit.bias)

    def start(self, memory: Tensor) -> KVCache:
        """The empty cache for B sentences.

        Args:
            memory: The differences, [B, N, width].
        """
        sizes = self.sizes
        return KVCache.empty(
            memory,
            layers=sizes.layers,
            width=self.width,
            heads=sizes.heads,
            length=sizes.length,
            looks=True,
        )

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, state: KVCache) -> Tensor:
        """Logits [B, words] of the word after ids int64 [B]; adds keys and values to `state`.

        Args:
            memory: The differences, [B, N, width].
        """
        x: Tensor = self._norm(self._words[ids] + self._places[state.count])
        state.count += 1
        for layer, keys, values in zip(self._layers, state.keys, state.values, strict=True):
            x, looked = layer(x, memory, keys[:, :, : state.count], values[:, :, : state.count])
        assert state.looked is not None
        state.looked[:, state.count - 1] = looked
        return self._out(x)


class _Layer:
    """A layer of the decoder, of x [B, width]."""

    def __init__(self, layer: Layer) -> None:
        own, other = layer.self_attention, layer.dec_enc_attention
        self._self_attention = SelfAttention((own.query, own.key, own.value), own.heads)
        scale = (other.query.out_features // other.heads) ** -0.5
        self._cross_attention = CrossAttention(
            other.query, other.key, other.value, other.heads, scale
        )
        widening, output = layer.hidden_intermediate.dense, layer.output.dense
        self._first = Packed(widening.weight, widening.bias)
        self._second = Packed(output.weight, output.bias)
        self._norms = layer.norm1, layer.norm2, layer.output.LayerNorm

    def __call__(
        self, x: Tensor, memory: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm1, norm2, norm3 = self._norms
        x = norm1(self._self_attention(x, keys, values) + x)
        mixed, looked = self._cross_attention.with_scores(x, memory)
        x = F.gelu(self._first(norm2(x + mixed)))
        return norm3(self._second(x) + x), looked
