"""ProCap's caption decoder: word ids and the encoder's output → logits of the next word.

A post-norm transformer decoder whose word embeddings are the output matrix. Names follow the
reference's `text_decoder.decoder`. `decoding/cached_decoder.py` decodes with it.
Source: ProCap's code; Vaswani et al., 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_train.layers.attention_sizes import AttentionSizes

EPS = 1e-6


class DecoderSettings(AttentionSizes):
    """Sizes of the caption decoder."""

    width: int = Field(192, ge=8, multiple_of=2)
    """Channels of a token; a multiple of `heads`."""
    heads: int = Field(4, ge=1)
    """Attention heads."""
    hidden: int = Field(512, ge=1)
    """Channels within the feed-forward layers."""
    layers: int = Field(2, ge=1)
    """Layers."""
    length: int = Field(24, ge=3)
    """Words of a caption plus the marks for start and end; longer captions are cut in training, and
    a note counts them."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout."""
    init: Literal["xavier", "torch"] = "xavier"
    """How the matrices of the layers start: `torch` is torch's default, as in ProCap's code, with
    which attention stays uniform for thousands of steps."""


def sizes_of(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The `DecoderSettings` that show in the shapes of a checkpoint's tensors.

    Args:
        shapes: The shape of each tensor by its name.

    Returns:
        width, hidden and layers; heads and length leave no trace.

    Raises:
        KeyError: The checkpoint holds no decoder.
    """
    return {
        "width": shapes["out.weight"][1],
        "hidden": shapes["layers.0.feedforward.layer.linear1.weight"][0],
        "layers": len({name.split(".")[1] for name in shapes if name.startswith("layers.")}),
    }


class Norm(nn.Module):
    """Layer normalisation; with reference_quirks (x − mean) / (std + eps), the std unbiased."""

    def __init__(self, width: int, reference_quirks: bool = False) -> None:
        super().__init__()
        self.reference_quirks = reference_quirks
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if not self.reference_quirks:
            return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta, EPS)
        centred = x - x.mean(-1, keepdim=True)
        length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)  # torch.std takes longer
        std = length / math.sqrt(x.shape[-1] - 1)
        return torch.addcmul(self.beta, self.gamma, centred / (std + EPS))


class Attention(nn.Module):
    """Multi-head attention without biases.

    Args:
        scale: What scores are multiplied by.
    """

    def __init__(self, sizes: DecoderSettings, reference_quirks: bool) -> None:
        super().__init__()
        width, self.heads, self.dropout = sizes.width, sizes.heads, sizes.dropout
        self.scale = 1 / math.sqrt(width if reference_quirks else width // self.heads)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, causal: bool = False) -> Tensor:
        """Attention [B, L, D] of x [B, L, D] to `memory` [B, N, D].

        Args:
            causal: A position attends to itself and those before it only.
        """
        query, key, value = self.wq(x), self.wk(memory), self.wv(memory)
        mixed = F.scaled_dot_product_attention(
            self._split(query),
            self._split(key),
            self._split(value),
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            scale=self.scale,
        )
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out

    def weights(self, x: Tensor, memory: Tensor) -> Tensor:
        """How much of `memory` [B, N, D] each position of x [B, L, D] takes: [B, L, N], the mean
        over heads; without dropout."""
        products = self._split(self.wq(x)) @ self._split(self.wk(memory)).transpose(2, 3)
        return (self.scale * products).softmax(3).mean(1)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers around a ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.relu(self.linear1(x)))
        return out


class AttentionSublayer(nn.Module):
    """An attention, and the norm that follows its residual connection."""

    def __init__(self, sizes: DecoderSettings, reference_quirks: bool) -> None:
        super().__init__()
        self.layer = Attention(sizes, reference_quirks)
        self.layernorm = Norm(sizes.width, reference_quirks)


class FeedForwardSublayer(nn.Module):
    """A feed-forward layer, and the norm that follows its residual connection."""

    def __init__(self, sizes: DecoderSettings, reference_quirks: bool) -> None:
        super().__init__()
        self.layer = FeedForward(sizes.width, sizes.hidden)
        self.layernorm = Norm(sizes.width, reference_quirks)


class Layer(nn.Module):
    """A layer: causal self-attention, attention to the memory, feed-forward, a norm after each."""

    def __init__(self, sizes: DecoderSettings, reference_quirks: bool) -> None:
        super().__init__()
        self.selfattn = AttentionSublayer(sizes, reference_quirks)
        self.attention = AttentionSublayer(sizes, reference_quirks)
        self.feedforward = FeedForwardSublayer(sizes, reference_quirks)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        """[B, L, D] of x [B, L, D] and the encoder's output, [B, N, D]."""
        x = self.among_words(x)
        mixed = self.attention.layer(x, memory)
        x = self.attention.layernorm(x + self.dropout(mixed))
        out: Tensor = self.feedforward.layernorm(x + self.dropout(self.feedforward.layer(x)))
        return out

    def among_words(self, x: Tensor) -> Tensor:
        """The first third of the layer: what words take of those before them."""
        mixed = self.selfattn.layer(x, x, causal=True)
        out: Tensor = self.selfattn.layernorm(x + self.dropout(mixed))
        return out


class CaptionDecoder(nn.Module):
    """Word ids and the encoder's output → logits of the next word at each position.

    Args:
        words: How many words the vocabulary has.
        sizes: Of the decoder.
        reference_quirks: Two deviations of the reference, which its published weights need: scores
            are divided by the root of the model's width and not of a head's, which makes attention
            flatter, and the layer norm divides by the unbiased deviation plus epsilon.
    """

    positions: Tensor

    def __init__(self, words: int, sizes: DecoderSettings, reference_quirks: bool = False) -> None:
        super().__init__()
        self.sizes = sizes
        self.layers = nn.ModuleList(Layer(sizes, reference_quirks) for _ in range(sizes.layers))
        self.out = nn.Linear(sizes.width, words)
        self.dropout = nn.Dropout(sizes.dropout)
        table = sinusoids(sizes.length, sizes.width)
        self.register_buffer("positions", table, persistent=False)
        # Xavier's is the one that post-norm transformers were published with.
        if sizes.init == "xavier":
            for parameter in self.layers.parameters():
                if parameter.ndim == 2:
                    nn.init.xavier_uniform_(parameter)

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Logits [B, L, words] of ids int64 [B, L] and the encoder's output [B, N, width]."""
        logits: Tensor = self.out(self.hidden(ids, memory))
        return logits

    def hidden(self, ids: Tensor, memory: Tensor) -> Tensor:
        """The states [B, L, width] that the logits are read from."""
        x = self._embedded(ids)
        for layer in self.layers:
            x = layer(x, memory)
        return x

    def looked(self, ids: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """`hidden`, and where the last layer looks from each position: [B, L, N], summing to 1.

        The weights come from a run of their own of the last layer's self-attention. In training
        that run draws its own dropout, so they are not exactly those by which `hidden` was mixed.
        """
        x = self._embedded(ids)
        for layer in self.layers[:-1]:
            x = layer(x, memory)
        last = cast("Layer", self.layers[-1])
        weights = last.attention.layer.weights(last.among_words(x), memory)
        return last(x, memory), weights

    def _embedded(self, ids: Tensor) -> Tensor:
        x = math.sqrt(self.sizes.width) * F.embedding(ids, self.out.weight)
        out: Tensor = self.dropout(x + self.positions[: ids.shape[1]])
        return out


def sinusoids(length: int, width: int) -> Tensor:
    """Sines at even and cosines at odd channels, float32 [length, width]; width is even."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)
