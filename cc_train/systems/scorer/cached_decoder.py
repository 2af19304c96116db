"""SCORER's decoder for inference: one position at a time, with weights laid out for that.

It computes the result of `Speaker.forward` at a position, from the keys and values of the words so
far. Keys and values of the differences are never made: for one query and a long memory it is
cheaper to project the query onto the memory (see `cc_train.decoding.cached_decoder`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.cpu.linear import Packed
from cc_train.systems.scorer.decoder import Attention, Layer, Speaker


@dataclass
class SpeakerCache:
    """The words so far of B sentences.

    keys, values: [layers, B, heads, length, width / heads] each. looked: the last layer's scores of
    the places before the softmax, the mean over heads, [B, length, N]. count: number of filled
    positions; `CachedSpeaker.step` fills one more.
    """

    keys: Tensor
    values: Tensor
    looked: Tensor
    count: int = 0

    def select(self, rows: Tensor) -> SpeakerCache:
        """The cache of the sentences with these row numbers, int64 [B']."""
        return SpeakerCache(self.keys[:, rows], self.values[:, rows], self.looked[rows], self.count)


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

    def start(self, memory: Tensor) -> SpeakerCache:
        """The empty cache for B sentences. memory: the differences, [B, N, width]."""
        sizes = self.sizes
        head = self.width // sizes.heads
        shape = (sizes.layers, len(memory), sizes.heads, sizes.length, head)
        looked = memory.new_zeros(len(memory), sizes.length, memory.shape[1])
        return SpeakerCache(memory.new_empty(shape), memory.new_empty(shape), looked)

    @torch.inference_mode()
    def step(self, ids: Tensor, memory: Tensor, state: SpeakerCache) -> Tensor:
        """Logits [B, words] of the word after ids int64 [B]; adds keys and values to `state`.

        memory: the differences, [B, N, width].
        """
        x: Tensor = self._norm(self._words[ids] + self._places[state.count])
        state.count += 1
        for layer, keys, values in zip(self._layers, state.keys, state.values, strict=True):
            x, looked = layer(x, memory, keys[:, :, : state.count], values[:, :, : state.count])
        state.looked[:, state.count - 1] = looked
        return self._out(x)


class _Layer:
    """A layer of the decoder, of x [B, width]."""

    def __init__(self, layer: Layer) -> None:
        self._self_attention = _SelfAttention(layer.self_attention)
        self._cross_attention = _CrossAttention(layer.dec_enc_attention)
        widening, output = layer.hidden_intermediate.dense, layer.output.dense
        self._first = Packed(widening.weight, widening.bias)
        self._second = Packed(output.weight, output.bias)
        self._norms = layer.norm1, layer.norm2, layer.output.LayerNorm

    def __call__(
        self, x: Tensor, memory: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm1, norm2, norm3 = self._norms
        x = norm1(self._self_attention(x, keys, values) + x)
        mixed, looked = self._cross_attention(x, memory)
        x = F.gelu(self._first(norm2(x + mixed)))
        return norm3(self._second(x) + x), looked


class _SelfAttention:
    """Attention to the words so far."""

    def __init__(self, attention: Attention) -> None:
        parts = (attention.query, attention.key, attention.value)
        self._joined = Packed(
            torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
        )
        self._heads = attention.heads

    def __call__(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """keys, values: [B, heads, L, width / heads], whose last position is put in here."""
        query, key, value = self._joined(x).unflatten(1, (3, self._heads, -1)).unbind(1)
        keys[:, :, -1], values[:, :, -1] = key, value
        mixed = F.scaled_dot_product_attention(query[:, :, None], keys, values)
        return mixed.flatten(1)


class _CrossAttention:
    """Attention to the differences, whose keys and values are never made."""

    def __init__(self, attention: Attention) -> None:
        heads = attention.heads
        key, value = attention.key, attention.value
        self._to_memory = key.weight.detach().unflatten(0, (heads, -1))  # [heads, d, width]
        self._key_bias = key.bias.detach().unflatten(0, (heads, -1))  # [heads, d]
        from_memory = value.weight.detach().unflatten(0, (heads, -1)).transpose(1, 2)
        self._from_memory = from_memory.contiguous()  # [heads, width, d]
        self._value_bias = value.bias.detach()
        self._query = Packed(attention.query.weight, attention.query.bias)
        self._heads = heads
        self._scale = self._key_bias.shape[1] ** -0.5

    def __call__(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[B, width] of x [B, width]; and the scores of the places, the mean over heads, [B, N]."""
        query = self._query(x).unflatten(1, (self._heads, -1)) * self._scale  # [B, heads, d]
        looking = torch.bmm(query.transpose(0, 1), self._to_memory).transpose(0, 1)
        scores = torch.bmm(looking, memory.transpose(1, 2))  # [B, heads, N]
        # The bias of the keys adds the same to all places: no softmax sees it.
        bias = (query * self._key_bias).sum(2).mean(1, keepdim=True)
        mixed = torch.bmm(scores.softmax(2), memory)  # [B, heads, width]
        values = torch.bmm(mixed.transpose(0, 1), self._from_memory).transpose(0, 1)
        return values.flatten(1) + self._value_bias, scores.mean(1) + bias
