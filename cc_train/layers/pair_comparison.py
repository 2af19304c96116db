"""What differs between two images that are grids of features.

Each image is reconstructed from the other by attention; what a reconstruction leaves over and the
plain difference show the change. Two attention maps say where it is before and after; the
attributes of the object are read there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.layers.caption_decoder import sinusoids

GROUPS = 8
SUMMARIES, PLACES = 7, 2


@dataclass(frozen=True)
class Changes:
    """What is seen of P pairs.

    Attributes:
        facts: Logits [P, sum of the `fact_classes` of a FactVocabulary].
        before, after: Logits of the place of the change, [P, rows · columns].
        summaries: What the attention maps read, [P, SUMMARIES, D]; with `places`, PLACES more say
            where the change is before and after.
        grid: The differences at every place, [P, rows · columns, D].
    """

    facts: Tensor
    before: Tensor
    after: Tensor
    summaries: Tensor
    grid: Tensor


class Reading(NamedTuple):
    """What is read of P pairs: facts, before and after as in `Changes`.

    Attributes:
        pooled: What the attention maps and the maximum gather, five of [P, D].
        fused: What the facts are read from, [P, 2 · D].
    """

    facts: Tensor
    before: Tensor
    after: Tensor
    pooled: list[Tensor]
    fused: Tensor


class Residual(nn.Module):
    """Two filters around a shortcut; at the start it is the shortcut alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(GROUPS, width), nn.GroupNorm(GROUPS, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv1(F.gelu(self.norm1(x)))
        return x + self.conv2(F.gelu(self.norm2(out)))


class CrossAttention(nn.Module):
    """What x [B, N, D] finds in y [B, M, D]."""

    attend = staticmethod(F.scaled_dot_product_attention)

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, seen: Tensor | None = None) -> Tensor:
        """[B, N, D].

        Args:
            seen: What of y can be looked at, bool [B, M], at least one of each row, or logarithms
                of how much each weighs; None for all alike.
        """
        products = self.query(x), self.key(y), self.value(y)
        query, key, value = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in products
        )
        mask = None if seen is None else seen[:, None, None]
        mixed = self.attend(query, key, value, mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FactReader(nn.Module):
    """What a renderer knows of a change, read from grids of what differs between two images.

    Two attention maps say where the change is before and after; the attributes of the object are
    read there.

    Args:
        width: D.
        dropout: Of what the facts are read from.
        vocabulary: The facts that are read.
    """

    def __init__(
        self, width: int, dropout: float = 0.1, vocabulary: FactVocabulary = SOLIDS
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        attributes = sum(vocabulary.attribute_classes)
        self.place_before, self.place_after = nn.Linear(width, 1), nn.Linear(width, 1)
        self.look = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, attributes))
        self.centre = nn.Conv2d(width, 1, 1)
        read = 5 * width + 2 * attributes
        self.fuse = nn.Sequential(
            nn.LayerNorm(read), nn.Linear(read, 2 * width), nn.GELU(), nn.Dropout(dropout)
        )
        self.facts = nn.Linear(2 * width, sum(vocabulary.fact_classes))

    def attributes_at(self, images: Tensor, places: Tensor) -> Tensor:
        """Logits [M, sum of the `attribute_classes`] at places (u, v) [M, 2] of M images."""
        points = (2 * places - 1).clamp(-1, 1)[:, None, None]
        sampled = F.grid_sample(images.float(), points, padding_mode="border", align_corners=False)
        out: Tensor = self.look(sampled.flatten(1))
        return out

    def read(self, before: Tensor, after: Tensor, grid: Tensor) -> Reading:
        """before, after: the images, [P, N, D]. grid: what differs at every place, [P, N, D]."""
        at_before, at_after = self.place_before(grid)[..., 0], self.place_after(grid)[..., 0]
        pooled = [
            _pool(tokens, logits)
            for logits, other in ((at_before, before), (at_after, after))
            for tokens in (grid, other)
        ]
        pooled.append(grid.amax(1))
        look_before, look_after = self.look(pooled[1]), self.look(pooled[3])
        fused = self.fuse(torch.cat((*pooled, look_before, look_after), dim=1))
        facts = self._facts(fused, look_before, look_after)
        return Reading(facts, at_before, at_after, pooled, fused)

    def _facts(self, fused: Tensor, look_before: Tensor, look_after: Tensor) -> Tensor:
        """Logits of all facts: the read-out's own, with the attributes read at the places."""
        vocabulary = self.vocabulary
        kinds = len(vocabulary.types)
        own = self.facts(fused).float()
        # The chance that the object is seen in the second image alone.
        added = own[:, :kinds].softmax(1)[:, list(vocabulary.added)].sum(1, keepdim=True)
        seen = look_before * (1 - added) + look_after * added
        looks = dict(
            zip(
                vocabulary.attributes,
                look_after.split(vocabulary.attribute_classes, dim=1),
                strict=True,
            )
        )
        of_places = torch.cat((seen, *(looks[name] for name in vocabulary.new)), dim=1)
        return torch.cat((own[:, :kinds], own[:, kinds:] + of_places), dim=1)


class Comparison(FactReader):
    """Images as features float [P, D, rows, columns] → what differs between pairs of them.

    Args:
        width: D.
        dropout: Of what the facts are read from.
        vocabulary: The facts that are read.
        places: Whether summaries say where the change is. Among differences that are a hundred
            times as large, a decoder hardly sees the positions of places: of composed pairs it
            learned top and bottom, which the pictures show as well, and left and right not at all.
    """

    def __init__(
        self,
        width: int,
        grid: tuple[int, int],
        heads: int = 4,
        dropout: float = 0.1,
        vocabulary: FactVocabulary = SOLIDS,
        places: bool = False,
    ) -> None:
        super().__init__(width, dropout, vocabulary)
        self.places = places
        self.position = nn.Parameter(
            grid_sinusoids(*grid, width) if places else 0.02 * torch.randn(grid[0] * grid[1], width)
        )
        self.norm = nn.LayerNorm(width)
        self.cross = CrossAttention(width, heads)
        self.mix = nn.Sequential(nn.Conv2d(5 * width, width, 1), Residual(width))
        self.from_fused = nn.Linear(2 * width, width)
        self.from_facts = nn.Linear(sum(vocabulary.fact_classes), width)

    @property
    def summaries(self) -> int:
        """Number of summaries of a pair."""
        return SUMMARIES + (PLACES if self.places else 0)

    def forward(self, first: Tensor, second: Tensor) -> Changes:
        """The changes from images [P, D, rows, columns] to others."""
        before, after = (x.flatten(2).transpose(1, 2) for x in (first, second))
        p, q = self.norm(before + self.position), self.norm(after + self.position)
        parts = (
            before,
            after,
            after - before,
            before - self.cross(p, q),
            after - self.cross(q, p),
        )
        stacked = torch.cat(parts, dim=2).transpose(1, 2).unflatten(2, first.shape[2:])
        grid = self.mix(stacked).flatten(2).transpose(1, 2)
        seen = self.read(before, after, grid)
        facts = seen.facts.split(self.vocabulary.fact_classes, dim=1)
        chances = torch.cat([part.softmax(1) for part in facts], dim=1)
        summaries = [*seen.pooled, self.from_fused(seen.fused), self.from_facts(chances)]
        if self.places:
            positions = self.position.expand(len(grid), -1, -1)
            summaries += [_pool(positions, seen.before), _pool(positions, seen.after)]
        stacked_summaries = torch.stack(summaries, dim=1)
        return Changes(seen.facts, seen.before, seen.after, stacked_summaries, grid)


def grid_sinusoids(rows: int, columns: int, width: int) -> Tensor:
    """Where each place of a grid is, [rows · columns, width]: its row, then its column."""
    down, across = sinusoids(rows, width // 2), sinusoids(columns, width // 2)
    parts = (down[:, None].expand(-1, columns, -1), across[None].expand(rows, -1, -1))
    return torch.cat(parts, dim=2).flatten(0, 1)


def change_bridge(width: int, out: int) -> nn.Sequential:
    """A projection from the channels of changes to those of a decoder."""
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out))


def change_kinds(out: int, summaries: int = SUMMARIES) -> nn.Parameter:
    """What tells the summaries and the places apart, [summaries + 1, out]."""
    return nn.Parameter(0.02 * torch.randn(summaries + 1, out))


def change_tokens(
    changes: Changes,
    positions: Tensor | None,
    bridge: nn.Module,
    kinds: Tensor,
    pool: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What a decoder attends to, [P, N, out]: the summaries, then the differences at every place.

    Args:
        positions: Of the places, [rows · columns, D]; None leaves the places out.
        bridge, kinds: What `change_bridge` and `change_kinds` made.
        pool: Fewer places of all places, [P, N, D].
    """
    count = changes.summaries.shape[1]
    summaries: Tensor = bridge(changes.summaries) + kinds[:count]
    if positions is None:
        return summaries
    places = changes.grid + positions
    if pool is not None:
        places = pool(places)
    return torch.cat((summaries, bridge(places) + kinds[count]), dim=1)


def _pool(tokens: Tensor, logits: Tensor) -> Tensor:
    """[P, D] of tokens [P, N, D], by the attention that the logits [P, N] give."""
    pooled: Tensor = (tokens.float() * logits.float().softmax(1)[..., None]).sum(1)
    return pooled
