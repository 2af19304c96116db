"""Samples of training shards → batches of ordered pairs with masks and their true regions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from cc_prep.formats.training_shards import TrainingSample
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.systems.chain import matching
from cc_train.systems.chain.regions import UP


@dataclass(frozen=True)
class ChainBatches(OrderedPairBatches):
    """`ChainBatches(…)(samples, rngs)` is a batch for ChainObjective.

    Attributes:
        queries: The largest number of regions of a pair.
    """

    masks: bool = True
    queries: int = 16

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        """A batch of `OrderedPairBatches`, and of the M true regions of its pairs: region_pair and
        region_class int64 [M], region_mask float32 [M, h, w], on the grid of the pixels' vectors.

        A side whose classes differ from those of the union counts as unknown: if one thing became
        another, the union has only one of the two classes, and so has a region.
        """
        batch = super().__call__(samples, rngs)
        batch["has_mask"] = batch["has_mask"] & ~_contradicting(batch["mask"])
        rows, columns = batch["features"].shape[2:]
        pairs, classes, masks = [], [], [np.zeros((0, *batch["mask"].shape[2:]), np.float32)]
        for pair in batch["has_mask"][:, 0].nonzero()[:, 0].tolist():
            parts, numbers = matching.components(batch["mask"][pair, 0].numpy(), self.queries)
            pairs += [pair] * len(parts)
            classes += numbers.tolist()
            masks.append(parts)
        stacked = torch.from_numpy(np.concatenate(masks))[:, None]
        coarse = F.adaptive_avg_pool2d(stacked, (UP * rows, UP * columns))[:, 0]
        return {
            **batch,
            "region_pair": torch.tensor(pairs, dtype=torch.long),
            "region_class": torch.tensor(classes, dtype=torch.long),
            "region_mask": coarse,
        }


def _contradicting(masks: torch.Tensor) -> torch.Tensor:
    """Whether each mask of [P, 3, H, W] contradicts the union's class at a pixel, bool [P, 3]."""
    union = masks[:, :1]
    return ((masks > 0) & (union > 0) & (masks != union)).flatten(2).any(2)
