"""A renderer's facts of a pair, learned by SCORER besides captions; not in the paper.

The published method learns from captions alone. With few pairs its decoder does not learn where to
look: see docs/results.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_train.data.supervision import UNKNOWN
from cc_train.layers.pair_comparison import Changes, FactReader
from cc_train.systems.scorer.encoder import EncodedPairs
from cc_train.text import IGNORED
from cc_train.training import fact_losses
from cc_train.training.fact_losses import FactLosses


class SceneLosses(FactLosses):
    """Weights of the losses of what a renderer knows; 0 leaves one out."""

    look: float = Field(0.5, ge=0)
    """Of the decoder's attention at each word of a changed pair's caption; the target is the place
    of the object before, or after if it was added."""


class Supervision(nn.Module):
    """Losses of batches whose halves hold facts (`ScorerBatches` with a grid).

    Facts are predicted from the differences, to which the decoder attends; looks and centres of all
    objects from the projected images.

    Args:
        weights: Of the losses.
        width: D of both.
    """

    def __init__(self, weights: SceneLosses, width: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.weights, self.grid = weights, grid
        self.reader = FactReader(width)

    def denominators(self, half: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Number of terms of each loss in a half."""
        counts = fact_losses.denominators(half)
        return {**counts, "look": _looking(half)[1].sum()}

    def forward(
        self,
        encoded: EncodedPairs,
        looked: Tensor | None,
        half: Mapping[str, Tensor],
        counts: Mapping[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted sum of a half's losses; and each, divided by its count in the whole step.

        Args:
            looked: Scores of the places, [B, L, N], as in `Spoken`.
        """
        difference = encoded.difference
        reading = self.reader.read(difference, difference, difference)
        pooled = torch.stack(reading.pooled, dim=1)
        changes = Changes(reading.facts, reading.before, reading.after, pooled, difference)
        tokens = torch.cat((encoded.before, encoded.after))
        images = tokens.transpose(1, 2).unflatten(2, self.grid)
        parts = fact_losses.losses(self.reader, changes, images, half, counts)
        total = self.weights.total(parts)
        if self.weights.look:
            parts["look"] = _look(looked, half) / counts["look"]
            total = total + self.weights.look * parts["look"]
        return total, parts


def _looking(half: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The place of each pair's change, int64 [B]; and which words should look at it, [B, L]."""
    before, after = half["places"].unbind(1)
    place = torch.where(before != UNKNOWN, before, after)
    return place, (place != UNKNOWN)[:, None] & (half["labels"] != IGNORED)


def _look(looked: Tensor | None, half: Mapping[str, Tensor]) -> Tensor:
    """Summed cross-entropy of the scores of the places, [B, L, N]."""
    assert looked is not None
    place, known = _looking(half)
    target = torch.where(known, place[:, None], UNKNOWN)
    return F.cross_entropy(
        looked.float().transpose(1, 2), target, ignore_index=UNKNOWN, reduction="sum"
    )
