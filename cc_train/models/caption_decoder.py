"""ProCap's caption decoder: word ids and what the encoder saw → logits of the next word.

A post-norm transformer of the first kind with three habits of the reference that its published
weights need: scores are divided by the root of the model's width and not of a head's, the layer
norm uses the unbiased deviation, and word embeddings are the output matrix. Names follow the
reference's `text_decoder.decoder`. For decoding, keys and values are kept from step to step.
Source: ProCap's code; Vaswani et al., 2017.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.linear import Linear

EPS = 1e-6


@dataclass(frozen=True)
class Config:
    """Sizes. length: positions of a caption, its begin and end marks included."""

    words: int = 80
    width: int = 512
    heads: int = 8
    hidden: int = 2048
    layers: int = 2
    length: int = 24
    dropout: float = 0.1

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]], heads: int, length: int) -> Config:
        """Read off a checkpoint's shapes. Raises KeyError for what is no decoder."""
        words, width = shapes["out.weight"]
        layers = {n.split(".")[1] for n in shapes if n.startswith("layers.")}
        return cls(
            words=words,
            width=width,
            heads=heads,
            hidden=shapes["layers.0.feedforward.layer.linear1.weight"][0],
            layers=len(layers),
            length=length,
        )


@dataclass
class Past:
    """Keys and values of a sentence's words so far, [layers, B, heads, length, D / heads].

    Those of `count` positions are there; `CaptionDecoder.step` adds one.
    """

    keys: Tensor
    values: Tensor
    count: int = 0

    def of(self, rows: Tensor) -> Past:
        """That of some sentences, int [B']."""
        return Past(self.keys[:, rows], self.values[:, rows], self.count)


class Norm(nn.Module):
    """(x − mean) / (std + eps), the deviation unbiased."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(x, dim=-1, keepdim=True)
        return self.gamma * (x - mean) / (std + EPS) + self.beta


class Attention(nn.Module):
    """Multi-head attention without biases."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.width, self.dropout = heads, width, dropout
        self.wq, self.wk, self.wv, self.wo = (Linear(width, width, bias=False) for _ in range(4))

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of [B, N, D], [B, heads, N, D / heads] each."""
        return self._split(self.wk(memory)), self._split(self.wv(memory))

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        mixed = F.scaled_dot_product_attention(
            self._split(self.wq(x)),
            keys,
            values,
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            scale=1 / math.sqrt(self.width),
        )
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out

    def absorbed(self, x: Tensor, memory: Tensor) -> Tensor:
        """`forward` of x [B, L, D] over all of `memory` [B, N, D], whose keys are never made.

        q · (K m) = (Kᵀ q) · m, and values likewise: for a short x and a long memory it is much
        less to bring the few queries to the memory than the memory to the queries.
        """
        keys, values = (w.weight.unflatten(0, (self.heads, -1)) for w in (self.wk, self.wv))
        # Not @, which would copy the weights for every item.
        queries = torch.einsum("bhld,hdw->bhlw", self._split(self.wq(x)), keys)
        mixed = F.scaled_dot_product_attention(
            queries.flatten(1, 2)[:, None],
            memory[:, None],
            memory[:, None],
            dropout_p=self.dropout if self.training else 0.0,
            scale=1 / math.sqrt(self.width),
        )
        heads = torch.einsum("bhlw,hdw->bhld", mixed[:, 0].unflatten(1, (self.heads, -1)), values)
        out: Tensor = self.wo(heads.transpose(1, 2).flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers around a ReLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.linear1, self.linear2 = Linear(width, hidden), Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(F.relu(self.linear1(x)))
        return out


class Attended(nn.Module):
    """An attention with the norm that follows its shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = Attention(config.width, config.heads, config.dropout)
        self.layernorm = Norm(config.width)


class Hidden(nn.Module):
    """A feed-forward layer with the norm that follows its shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layer = FeedForward(config.width, config.hidden)
        self.layernorm = Norm(config.width)


class Layer(nn.Module):
    """Causal self-attention, attention to the memory, feed-forward; the norm after each."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.selfattn, self.attention = Attended(config), Attended(config)
        self.feedforward = Hidden(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, memory: Tensor, kept: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """x: [B, L, D]. memory: the encoder's output.

        kept: x is one position only, and the keys and values of all up to it stand here; its own,
        the last, are put in.
        """
        keys, values = self.selfattn.layer.keys_values(x)
        if kept is not None:
            kept[0][:, :, -1:], kept[1][:, :, -1:] = keys, values
            keys, values = kept
        mixed = self.selfattn.layer(x, keys, values, causal=kept is None)
        x = self.selfattn.layernorm(x + self.dropout(mixed))
        across = self.attention.layer
        if kept is not None:
            mixed = across.absorbed(x, memory)
        else:
            mixed = across(x, *across.keys_values(memory), causal=False)
        x = self.attention.layernorm(x + self.dropout(mixed))
        out: Tensor = self.feedforward.layernorm(x + self.dropout(self.feedforward.layer(x)))
        return out


class CaptionDecoder(nn.Module):
    """The decoder."""

    positions: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.out = Linear(config.width, config.words)
        self.dropout = nn.Dropout(config.dropout)
        table = sinusoids(config.length, config.width)
        self.register_buffer("positions", table, persistent=False)
        # torch's own start makes attention so even that it takes thousands of steps to look at
        # anything; this is what post-norm transformers were made with.
        for parameter in self.layers.parameters():
            if parameter.ndim == 2:
                nn.init.xavier_uniform_(parameter)

    def forward(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Logits [B, L, words] of word ids [B, L] and the encoder's output [B, N, width]."""
        x = self._embedded(ids, 0)
        for layer in self.layers:
            x = layer(x, memory)
        logits: Tensor = self.out(x)
        return logits

    def start(self, memory: Tensor) -> Past:
        """What is kept of no word yet, of as many sentences as memory [B, N, width] has."""
        config = self.config
        head = config.width // config.heads
        shape = (config.layers, len(memory), config.heads, config.length, head)
        return Past(memory.new_empty(shape), memory.new_empty(shape))

    def step(self, ids: Tensor, memory: Tensor, past: Past) -> Tensor:
        """Logits [B, words] of what follows ids [B], which follow those in `past` and join them."""
        x = self._embedded(ids[:, None], past.count)
        past.count += 1
        kept = zip(past.keys[..., : past.count, :], past.values[..., : past.count, :], strict=True)
        for layer, one in zip(self.layers, kept, strict=True):
            x = layer(x, memory, one)
        logits: Tensor = self.out(x[:, 0])
        return logits

    def _embedded(self, ids: Tensor, start: int) -> Tensor:
        x = math.sqrt(self.config.width) * F.embedding(ids, self.out.weight)
        embedded: Tensor = self.dropout(x + self.positions[start : start + ids.shape[1]])
        return embedded


def sinusoids(length: int, width: int) -> Tensor:
    """Sines at even and cosines at odd channels, [length, width]."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    angles = torch.arange(length)[:, None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)
