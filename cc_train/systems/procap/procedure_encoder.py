"""ProCap's procedure encoder: a caption and the frames of a change → hidden states, three heads.

The sequence is `[REL] | text | [ST1] [VID] | frame tokens`, frames outermost, then rows, then
columns. Module names follow the reference's `dalle.pt`, so its tensors load by name.
Source: ProCap, ICLR 2026, section 3; its code where the two differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.models.clip import Mask, RowMask, Transformer, count_layers
from cc_prep.settings import Section
from cc_train.layers.feature_grid import Standardise
from cc_train.systems.procap import pasting

REL, ST1, VID = 0, 1, 2
SPECIAL = 5  # two of them are reserved
BYTE_PAIRS = 49408
LOCAL = "to_logits_local"


class Sizes(Section):
    """Sizes that a new procedure encoder may have."""

    width: int = Field(768, ge=64, multiple_of=64)
    """Channels; CLIP's weights need 768."""
    layers: int = Field(12, ge=1)
    """Blocks."""
    text_length: int = Field(24, ge=1)
    """Byte pairs of a caption; longer captions are cut."""
    compare_ends: bool = False
    """The head that judges the caption also reads the difference between both ends, and not only
    [REL], as in the paper."""


class Config(Sizes):
    """Sizes of a procedure encoder, and what its frames are.

    Attributes:
        latent: Channels of a frame's features.
        frames: Of a sequence, both ends included.
        text_vocabulary: Byte pairs of captions; 0 of an encoder that never sees one.
        standardised: The features' channels are standardised first.
        local: It has the head that tells what was pasted where.
    """

    latent: int = 256
    codes: int = 1024
    frames: int = 4
    rows: int = 14
    columns: int = 14
    text_vocabulary: int = BYTE_PAIRS
    standardised: bool = False
    local: bool = False

    @property
    def frame_tokens(self) -> int:
        """Tokens of one frame, the paper's n_I."""
        return self.rows * self.columns

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """The sizes of a checkpoint, from its tensors' shapes by name; the bounds of new ones do
        not count.

        Raises:
            KeyError: If it holds no procedure encoder.
        """
        length, width = shapes["text_pos_emb.weight"]
        return cls.model_construct(
            width=width,
            layers=count_layers(shapes, "transformer"),
            latent=shapes["conv_to_embedding.1.weight"][1],
            codes=shapes["to_logits.1.weight"][0],
            frames=shapes["target_pos_emb.weights.0"][1],
            rows=shapes["target_pos_emb.weights.1"][2],
            columns=shapes["target_pos_emb.weights.2"][3],
            text_length=length,
            text_vocabulary=shapes["text_emb.weight"][0] - length - 1,
            standardised="standardise.mean" in shapes,
            compare_ends=shapes["to_logits_rel.1.weight"][1] > width,
            local=f"{LOCAL}.0.weight" in shapes,
        )


class AxialPositions(nn.Module):
    """One learnable table each for time, row and column, summed."""

    def __init__(self, frames: int, rows: int, columns: int, width: int, std: float) -> None:
        super().__init__()
        shapes = ((1, frames, 1, 1, width), (1, 1, rows, 1, width), (1, 1, 1, columns, width))
        self.weights = nn.ParameterList(nn.Parameter(std * torch.randn(s)) for s in shapes)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters without weight decay: all tables, since they are embeddings."""
        return {f"weights.{number}" for number in range(len(self.weights))}

    def forward(self) -> Tensor:
        """Position embeddings [frames · rows · columns, width]."""
        time, row, column = self.weights
        summed: Tensor = time + row + column
        return summed.flatten(0, 3)

    @torch.no_grad()
    def init_sinusoidal(self, scale: float = 0.5) -> None:
        """Initialises rows and columns as sines and cosines, half of the channels each; times as
        noise.

        So a token can find its neighbours, and its own position in other frames, from the first
        step on; learned from noise, this takes thousands of steps on a small data set.
        """
        time, *places = self.weights
        time.normal_(std=scale)
        half = time.shape[-1] // 2
        for number, table in enumerate(places):
            table.zero_()
            table[..., number * half : (number + 1) * half] = scale * sinusoids(
                table.numel() // table.shape[-1], half
            ).view(*table.shape[:-1], half)


def sinusoids(count: int, width: int) -> Tensor:
    """Sines and cosines of 0 … count − 1, [count, width]. Source: Vaswani et al., 2017."""
    frequencies = 100.0 ** -(torch.arange(width // 2) / (width // 2))
    angles = torch.arange(count)[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=1)


class ProcedureEncoder(nn.Module):
    """The encoder with its heads.

    Args:
        position_std: Initial standard deviation of the positions; 1 in the reference.
    """

    def __init__(self, config: Config, position_std: float = 1.0) -> None:
        super().__init__()
        self.config, width = config, config.width
        rows = config.text_vocabulary + config.text_length + 1  # the last one was never used
        self.text_emb = nn.Embedding(rows, width)
        self.text_pos_emb = nn.Embedding(config.text_length, width)
        self.special_emb = nn.Embedding(SPECIAL, width)
        self.special_pos_emb = nn.Embedding(SPECIAL, width)
        for table in (self.text_emb, self.text_pos_emb, self.special_emb, self.special_pos_emb):
            nn.init.normal_(table.weight, std=position_std)
        self.image_mask = nn.Parameter(torch.zeros(width))
        self.standardise = Standardise(config.latent) if config.standardised else None
        self.conv_to_embedding = nn.Sequential(
            nn.LayerNorm(config.latent), nn.Linear(config.latent, width)
        )
        self.target_pos_emb = AxialPositions(
            config.frames, config.rows, config.columns, width, position_std
        )
        self.transformer = Transformer(width, config.layers)
        self.to_logits = head(width, config.codes)
        self.to_logits_rel = head(3 * width if config.compare_ends else width, 1)
        if config.compare_ends:
            self.rel_text, self.rel_change = nn.Linear(width, width), nn.Linear(width, width)
        self.to_logits_vid = head(width, 1)
        if config.local:
            self.to_logits_local = nn.Sequential(
                nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.GELU(),
                nn.Linear(width, len(pasting.KINDS)),
            )  # fmt: skip

    def control(self, text: Tensor, related: bool = True, reference_quirks: bool = False) -> Tensor:
        """Embeddings [B, C, D] of the control tokens; `related` puts [REL] before them.

        Args:
            text: byte-pair ids [B, text_length], padded with 0; every position has a padding id of
                its own.
            reference_quirks: Padding ids start at 0, as in the reference's second stage, where they
                collide with the ids of words.
        """
        first = 0 if reference_quirks else self.config.text_vocabulary
        padding = first + torch.arange(text.shape[1], device=text.device)
        ids = torch.where(text == 0, padding, text)
        words = self.text_emb(ids) + self.text_pos_emb.weight
        special = self.special_emb.weight + self.special_pos_emb.weight
        tokens = [special[i].expand(len(text), 1, -1) for i in (REL, ST1, VID)]
        return torch.cat((*tokens[: 1 if related else 0], words, *tokens[1:]), dim=1)

    def relation_rows(self, first: int) -> list[int]:
        """The positions that `relation` reads.

        Args:
            first: Position of the first frame's first token.
        """
        if not self.config.compare_ends:
            return [REL]
        count = self.config.frame_tokens
        last = first + (self.config.frames - 1) * count
        words = range(REL + 1, REL + 1 + self.config.text_length)
        return [REL, *words, *range(first, first + count), *range(last, last + count)]

    def relation(self, states: Tensor) -> Tensor:
        """The input of `to_logits_rel`, from the states [B, R, D] at `relation_rows`.

        It is the state at [REL], [B, D], as in the paper. With `compare_ends` it is [B, 3 D]: also
        the largest difference between after and before in each channel, and its product with the
        mean over all text positions, those of padding included. A single changed place is lost in
        the mean over all places that attention computes, but not in the maximum. A linear head on
        caption and change separately cannot judge whether they match; on their product it can.
        """
        if not self.config.compare_ends:
            return states[:, 0]
        words, ends = states[:, 1:].split(
            (self.config.text_length, 2 * self.config.frame_tokens), dim=1
        )
        before, after = ends.chunk(2, dim=1)
        change = (after - before).amax(dim=1)
        both = self.rel_text(words.mean(dim=1)) * self.rel_change(change)
        return torch.cat((states[:, 0], change, both), dim=1)

    def embed(self, features: Tensor) -> Tensor:
        """Embeddings [B, T, n, D] of frame features [B, T, n, latent], without positions."""
        embedded: Tensor = self.conv_to_embedding(self.standardised(features))
        return embedded

    def standardised(self, features: Tensor) -> Tensor:
        """Frame features [..., latent], standardised by channel where the encoder does so."""
        if self.standardise is None:
            return features
        standardised: Tensor = self.standardise(features)
        return standardised

    def frames(self, features: Tensor, visible: Tensor | None = None) -> Tensor:
        """Embeddings [B, T · n, D] of frame features [B, T, n, latent].

        Args:
            visible: Bool [B, T · n]; other tokens are replaced by the mask vector. Positions are
                added to all.
        """
        return self.placed(self.embed(features), visible)

    def placed(self, embedded: Tensor, visible: Tensor | None = None) -> Tensor:
        """The embeddings that `embed` returned, [B, T, n, D], with masks and positions applied."""
        embedded = embedded.flatten(1, 2)
        if visible is not None:
            embedded = torch.where(visible[..., None], embedded, self.image_mask)
        return embedded + self.target_pos_emb()

    def forward(self, control: Tensor, frames: Tensor, reference_quirks: bool = False) -> Tensor:
        """Hidden states [B, C + N, D] of control and frame embeddings.

        Args:
            reference_quirks: Mask the rows at which [ST1] and [VID] would be after a [REL].
        """
        mask = self._mask(control, frames, reference_quirks)
        hidden: Tensor = self.transformer(torch.cat((control, frames), dim=1), mask=mask)
        return hidden

    def forward_frames(
        self, control: Tensor, frames: Tensor, reference_quirks: bool = False
    ) -> Tensor:
        """`forward`'s states at the frames alone, [B, N, D]; the last block computes no others."""
        mask = self._mask(control, frames, reference_quirks)
        joined = torch.cat((control, frames), dim=1)
        hidden = self.transformer(joined, mask=mask, stop=-1)
        rows = range(control.shape[1], joined.shape[1])
        # Of the usual mask the frames' rows hide nothing.
        last_mask = mask if reference_quirks else None
        states: Tensor = self.transformer.last.forward_rows(rows, hidden, last_mask)
        return states

    def forward_ends(self, embedded: Tensor, hidden: Tensor | None = None) -> Tensor:
        """States of both ends as stage 2 has them, [B, 2, n, D]: without a caption, and with all
        frames in between masked.

        Args:
            embedded: What `embed` made of both ends, [B, 2, n, D].
            hidden: Places of the ends that are masked as well, bool [2, n].
        """
        sizes, count, device = self.config, len(embedded), embedded.device
        inner = embedded.new_zeros(count, sizes.frames - 2, *embedded.shape[2:])
        visible = torch.zeros(sizes.frames, sizes.frame_tokens, dtype=torch.bool, device=device)
        visible[[0, -1]] = True if hidden is None else ~hidden
        frames = torch.cat((embedded[:, :1], inner, embedded[:, 1:]), dim=1)
        text = torch.zeros(count, sizes.text_length, dtype=torch.long, device=device)
        placed = self.placed(frames, visible.flatten().expand(count, -1))
        states = self.forward_frames(self.control(text, related=False), placed)
        return states.unflatten(1, (sizes.frames, sizes.frame_tokens))[:, [0, -1]]

    def local(self, ends: Tensor) -> Tensor:
        """What happened at each place, logits [B, n, kinds], from the states of both ends [B, 2, n,
        D]; only with `config.local`."""
        logits: Tensor = self.to_logits_local(torch.cat((ends[:, 0], ends[:, 1]), dim=-1))
        return logits

    def forward_variants(
        self, inputs: Sequence[tuple[Tensor, Tensor]], rows: Sequence[Sequence[int] | None]
    ) -> list[Tensor]:
        """`forward` of several pairs of control and frames, as one batch.

        Args:
            rows: The hidden states to compute for each variant, None for all; the last block
                computes no others.
        """
        control, frames = (torch.cat(part) for part in zip(*inputs, strict=True))
        mask = self._mask(control, frames)
        joined = torch.cat((control, frames), dim=1)
        parts = self.transformer(joined, mask=mask, stop=-1).chunk(len(inputs))
        last = self.transformer.last
        return [
            last(part, mask=mask) if chosen is None else last.forward_rows(chosen, part, mask)
            for part, chosen in zip(parts, rows, strict=True)
        ]

    def _mask(self, control: Tensor, frames: Tensor, reference_quirks: bool = False) -> Mask:
        """The attention mask; on a GPU only of the rows that need one, since its kernels without
        a mask are faster."""
        first = control.shape[1] - 2 if not reference_quirks else self.config.text_length + 1
        length = control.shape[1] + frames.shape[1]
        whole = attention_mask(length, (first, first + 1), control.device)
        return RowMask(first, whole[first : first + 2]) if control.is_cuda else whole


def attention_mask(length: int, blind: tuple[int, ...], device: torch.device) -> Tensor:
    """Which positions (columns) each position (row) attends to, bool [L, L].

    Args:
        blind: Rows that do not attend to the positions before them; all others attend to
            everything.
    """
    mask = torch.ones(length, length, dtype=torch.bool, device=device)
    for row in blind:
        mask[row, :row] = False
    return mask


def head(width: int, out: int) -> nn.Sequential:
    """LayerNorm and a linear layer."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out))


def resized_times(table: Tensor, frames: int) -> Tensor:
    """A time table [1, T, 1, 1, D] for another number of frames: both ends kept, linear between."""
    if table.shape[1] == frames:
        return table
    flat = table.flatten(2).transpose(1, 2)  # [1, D, T]
    resized = F.interpolate(flat, frames, mode="linear", align_corners=True)
    return resized.transpose(1, 2).reshape(1, frames, 1, 1, -1)
