"""SCORER's caption decoder: word ids and the differences of a pair → logits of the next word.

Post-norm layers without output projections, whose feed-forward part has its residual inside. Names
follow the public code's `speaker_state`. `cached_decoder.py` decodes with it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.layers.caption_decoder import sinusoids
from cc_train.systems.scorer.encoder import EPS, split

INITIAL_STD = 0.02


class DecoderSettings(Section):
    """Sizes of the decoder, whose width is the encoder's."""

    word_width: int = Field(300, ge=2, multiple_of=2)
    """Channels of a word's embedding."""
    heads: int = Field(8, ge=1)
    """Attention heads."""
    layers: int = Field(2, ge=1)
    """Layers."""
    length: int = Field(24, ge=3)
    """Words of a caption plus the marks for start and end; longer captions are cut in training, and
    a note counts them."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout."""


class Spoken(NamedTuple):
    """hidden: states [B, L, width]. looked: scores of the places before the softmax, the mean over
    heads, [B, L, N]: those of the last layer.
    """

    hidden: Tensor
    looked: Tensor


class Attention(nn.Module):
    """Multi-head attention with biases and without a projection after it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """Attention of x [B, L, width] to `memory` [B, N, width], [B, L, width].

        Args:
            mask: Bool [B, 1, L, N], False where a position is not seen.
            causal: Without a mask, a position sees itself and those before it.
        """
        mixed = F.scaled_dot_product_attention(
            split(self.query(x), self.heads),
            split(self.key(memory), self.heads),
            split(self.value(memory), self.heads),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal,
        )
        return mixed.transpose(1, 2).flatten(2)

    def scores(self, x: Tensor, memory: Tensor) -> Tensor:
        """Scores before the softmax, the mean over heads, [B, L, N]."""
        # The mean over heads of their products is that of the whole vectors.
        products = self.query(x) @ self.key(memory).transpose(1, 2)
        scale: float = (x.shape[2] // self.heads) ** -0.5 / self.heads
        return products * scale


class Widening(nn.Module):
    """The first half of the feed-forward part; it is no wider."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.dense(x))


class Output(nn.Module):
    """The second half of the feed-forward part: its residual comes from the first half."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)
        self.LayerNorm = nn.LayerNorm(width, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.LayerNorm(self.dropout(self.dense(x)) + x)
        return out


class Layer(nn.Module):
    """Self-attention, attention to the differences, feed-forward; a norm after each."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attention, self.dec_enc_attention = (
            Attention(width, heads, dropout) for _ in range(2)
        )
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=EPS) for _ in range(2))
        self.hidden_intermediate = Widening(width)
        self.output = Output(width, dropout)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Tensor | None, looks: bool
    ) -> tuple[Tensor, Tensor | None]:
        """New states [B, L, width], and the scores of the places if `looks`."""
        x = self.norm1(self.self_attention(x, x, mask, mask is None) + x)
        looked = self.dec_enc_attention.scores(x, memory) if looks else None
        x = self.norm2(x + self.dec_enc_attention(x, memory, None, False))
        return self.output(self.hidden_intermediate(x)), looked


class Positions(nn.Module):
    """Adds sines and cosines of the position."""

    pe: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", sinusoids(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[: x.shape[1]]


class Core(nn.Module):
    """The decoder without its last layer."""

    def __init__(self, words: int, width: int, sizes: DecoderSettings) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, sizes.word_width, padding_idx=0)
        self.position_enc = Positions(sizes.length, sizes.word_width)
        self.fc = nn.Sequential(
            nn.Linear(sizes.word_width, width),
            nn.Dropout(sizes.dropout),
            nn.LayerNorm(width, eps=EPS),
        )
        self.layer = nn.ModuleList(
            Layer(width, sizes.heads, sizes.dropout) for _ in range(sizes.layers)
        )

    def forward(
        self, ids: Tensor, memory: Tensor, visible: Tensor | None, looks: bool
    ) -> tuple[Tensor, Tensor | None]:
        """States [B, L, width], and the last layer's scores of the places if `looks`."""
        mask, looked = None, None
        if visible is not None:
            length = ids.shape[1]
            causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
            mask = (visible.bool()[:, None] & causal)[:, None]  # [B, 1, L, L]
        x = self.fc(self.position_enc(self.embed(ids)))
        last = len(self.layer) - 1
        for number, layer in enumerate(self.layer):
            x, looked = layer(x, memory, mask, looks and number == last)
        return x, looked


class Speaker(nn.Module):
    """Word ids and the differences of pairs → logits of the next word at each position.

    Initialised as BERT is: normal weights of a standard deviation of 0.02, the row of padding too.

    Args:
        words: How many words the vocabulary has.
        width: Of the layers and of their memory.
        sizes: The other sizes.
    """

    def __init__(self, words: int, width: int, sizes: DecoderSettings) -> None:
        super().__init__()
        self.width, self.sizes = width, sizes
        self.core = Core(words, width, sizes)
        self.logit = nn.Linear(width, words)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, 0.0, INITIAL_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def hidden(self, ids: Tensor, memory: Tensor, visible: Tensor | None = None) -> Tensor:
        """States [B, L, width] of ids int64 [B, L] and differences [B, N, width].

        Args:
            visible: [B, L], 0 at positions that no other sees. Without it a position sees all
                before it; then the states after a caption's end differ, but no loss reads them.
        """
        states: Tensor = self.core(ids, memory, visible, False)[0]
        return states

    def forward(self, ids: Tensor, memory: Tensor, visible: Tensor | None = None) -> Tensor:
        """Logits [B, L, words]; see `hidden`."""
        logits: Tensor = self.logit(self.hidden(ids, memory, visible))
        return logits

    def looked(self, ids: Tensor, memory: Tensor, visible: Tensor | None = None) -> Spoken:
        """States, and the last layer's scores of the places."""
        return Spoken(*self.core(ids, memory, visible, True))
