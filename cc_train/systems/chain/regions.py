"""Regions of change: queries that gather differences, and the masks and classes they predict.

A region has one mask in the image before and one in the image after: what vanished and what
appeared. A mask's logits are the products of the region's own vector with those of the pixels.
Source: the queries and the product are those of MaskFormer (Cheng et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.layers.pair_comparison import Changes, CrossAttention, Residual
from cc_train.systems.chain.masks import Evidence, evidence

SIDES = 2  # before, after
UP = 2  # rows and columns of pixels in one of the grid of features
NONE_PRIOR, EMPTY_PRIOR = 2.0, -2.0  # of the class "none" and of a pixel at the start, logits
BESIDE = 0.02  # what a place counts at least, against one that is under a mask


class RegionSettings(Section):
    """Sizes of the regions."""

    queries: int = Field(16, ge=1)
    """The largest number of regions of a pair."""
    pixel_width: int = Field(32, ge=8, multiple_of=8)
    """Channels of the pixels' vectors."""
    layers: int = Field(2, ge=1)
    """Layers by which queries read a pair."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """The dropout."""


@dataclass(frozen=True)
class RegionInputs:
    """The input of the regions of P pairs.

    Attributes:
        places: The differences at every place, [P, rows · columns, D].
        memory: These and their summaries.
        pixels: [P, 2, d, h, w], before and after.
    """

    places: Tensor
    memory: Tensor
    pixels: Tensor

    def select(self, rows: Tensor) -> RegionInputs:
        """The inputs of some of the pairs.

        Args:
            rows: Their numbers, int64 [P'].
        """
        return RegionInputs(*(getattr(self, f.name)[rows] for f in fields(self)))


@dataclass(frozen=True)
class Regions:
    """N regions of each of P pairs.

    Attributes:
        tokens: [P, N, D].
        classes: Logits [P, N, 1 + K]; index 0 is "no region".
        masks: Logits [P, N, 2, h, w].
    """

    tokens: Tensor
    classes: Tensor
    masks: Tensor

    @property
    def presence(self) -> Tensor:
        """Probability that each region is present, [P, N], 0 to 1."""
        return 1 - self.classes.float().softmax(2)[..., 0]

    @property
    def evidence(self) -> Evidence:
        """The masks of all regions together."""
        return evidence(self.classes, self.masks)

    @property
    def unchanged(self) -> Tensor:
        """Log-probability that no region is present, [P]."""
        return self.classes.float().log_softmax(2)[..., 0].sum(1)

    def select(self, rows: Tensor) -> Regions:
        """The regions of some of the pairs.

        Args:
            rows: Their numbers, int64 [P'].
        """
        return Regions(*(getattr(self, f.name)[rows] for f in fields(self)))


class Pixels(nn.Module):
    """The vectors of pixels, made from differences, the image, and its finer features if any.

    Args:
        width: D, of the differences.
        fine: Channels of the finer features; 0 if there are none.
    """

    def __init__(self, width: int, fine: int, out: int) -> None:
        super().__init__()
        self.coarse = nn.ModuleList(nn.Conv2d(2 * width + 1, out, 1) for _ in range(SIDES))
        self.fine = nn.Conv2d(2 * fine, out, 1, bias=False) if fine else None
        self.mix = nn.Sequential(Residual(out), Residual(out))

    def forward(self, changes: Changes, images: Tensor, fine: Tensor | None) -> Tensor:
        """Vectors [P, 2, d, h, w] of images [P, 2, D, rows, columns] and fine [P, 2, C, h, w]."""
        grid = changes.grid.transpose(1, 2).unflatten(2, images.shape[3:])
        sides = []
        for side, logits in enumerate((changes.before, changes.after)):
            place = (logits.float().log_softmax(1) / 8).view(-1, 1, *images.shape[3:])
            x = self.coarse[side](torch.cat((grid, images[:, side], place), dim=1))
            x = F.interpolate(x, scale_factor=UP, mode="bilinear", align_corners=False)
            if self.fine is not None and fine is not None:
                x = x + self.fine(torch.cat((fine[:, side], fine[:, 1 - side]), dim=1))
            sides.append(x)
        out: Tensor = self.mix(torch.stack(sides, dim=1).flatten(0, 1))
        return out.unflatten(0, (-1, SIDES))


class Block(nn.Module):
    """A layer of regions: self-attention, attention to the sources, and a feed-forward part."""

    def __init__(self, width: int, heads: int, dropout: float, sources: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(sources + 2))
        self.among = CrossAttention(width, heads)
        self.look = nn.ModuleList(CrossAttention(width, heads) for _ in range(sources))
        self.think = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, *sources: tuple[Tensor, Tensor | None]) -> Tensor:
        """New tokens [P, N, D] of tokens [P, N, D].

        Args:
            sources: Tokens [P, M, D] of each source, and which of them are visible (None: all).
        """
        first, *norms, last = self.norms
        y = first(tokens)
        tokens = tokens + self.dropout(self.among(y, y))
        for norm, look, (memory, seen) in zip(norms, self.look, sources, strict=True):
            tokens = tokens + self.dropout(look(norm(tokens), memory, seen))
        out: Tensor = tokens + self.dropout(self.think(last(tokens)))
        return out


class RegionHead(nn.Module):
    """Region queries, the heads of their classes and masks, and the round that refines them.

    Args:
        width: D, of the differences.
        text: The width of the states of words.
        fine: Channels of the finer features of an image; 0 if there are none.
        classes: How many kinds of change there are in a mask.
        heads: Of every attention of the regions.
        sizes: The other sizes.
    """

    def __init__(
        self, width: int, text: int, *, fine: int, classes: int, heads: int, sizes: RegionSettings
    ) -> None:
        super().__init__()
        self.sizes, self.class_count, dropout = sizes, classes, sizes.dropout
        self.queries = nn.Parameter(0.5 * torch.randn(sizes.queries, width))
        self.pixels = Pixels(width, fine, sizes.pixel_width)
        self.memory_norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, 1) for _ in range(sizes.layers))
        self.round = Block(width, heads, dropout, 2)
        self.words = nn.Sequential(nn.LayerNorm(text), nn.Linear(text, width))
        self.constant = nn.Parameter(0.02 * torch.randn(1, text))
        self.classes = nn.Linear(width, 1 + classes)
        self.masks = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, SIDES * (sizes.pixel_width + 1))
        )
        last = self.masks[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # at first nothing is a region, and what is covers little
            self.classes.bias[0] = NONE_PRIOR
            last.bias.view(SIDES, -1)[:, 0] = EMPTY_PRIOR

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are no filters; see `optim.param_groups`."""
        return {"queries", "constant"}

    def inputs(
        self, changes: Changes, positions: Tensor, images: Tensor, fine: Tensor | None
    ) -> RegionInputs:
        """The input of the regions.

        Args:
            positions: Of the places, [rows · columns, D]; the others are the arguments of
                `Pixels.forward`.
        """
        places = self.memory_norm(changes.grid + positions)
        memory = torch.cat((self.memory_norm(changes.summaries), places), dim=1)
        return RegionInputs(places, memory, self.pixels(changes, images, fine))

    def first(self, inputs: RegionInputs) -> Regions:
        """The regions before any sentence is known."""
        tokens = self.queries.expand(len(inputs.memory), -1, -1)
        for block in self.blocks:
            tokens = block(tokens, (inputs.memory, None))
        return self._claimed(tokens, inputs)

    def refined(
        self, regions: Regions, inputs: RegionInputs, words: Tensor | None, is_word: Tensor | None
    ) -> Regions:
        """The regions, refined by a sentence: words [P, L, text] where is_word, bool [P, L].

        Without words (None), a learned constant takes their place. The regions attend most to the
        places that the masks cover so far.
        """
        constant = self.constant.expand(len(inputs.places), -1, -1)
        heard, present = constant, None
        if words is not None and is_word is not None:
            heard = torch.cat((constant, words), dim=1)
            present = F.pad(is_word, (1, 0), value=True)
        tokens = self.round(
            regions.tokens, (self.words(heard), present), (inputs.places, self._covered(regions))
        )
        return self._claimed(tokens, inputs)

    def _claimed(self, tokens: Tensor, inputs: RegionInputs) -> Regions:
        y = self.out_norm(tokens)
        vectors = self.masks(y).unflatten(2, (SIDES, -1))
        masks = torch.einsum("pnsd,psdhw->pnshw", vectors[..., 1:], inputs.pixels)
        return Regions(tokens, self.classes(y), masks + vectors[..., :1, None])

    def _covered(self, regions: Regions) -> Tensor:
        """Attention bias of each place, [P, rows · columns].

        It is the log-probability that something changed at or beside the place, and never −inf.
        """
        chance = regions.evidence.chance.detach().amax((1, 2))[:, None]  # [P, 1, h, w]
        beside = F.max_pool2d(F.max_pool2d(chance, UP), 3, stride=1, padding=1)
        return beside.flatten(1).clamp(min=BESIDE).log()
