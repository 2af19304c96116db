"""The losses between two logs: their means over all steps, not the values of the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cc_train.distributed import Ranks


class IntervalMeans:
    """Sums of the losses of the steps since the last log, kept on the device until they are read.

    A checkpoint holds the sums, so that a resumed run logs what the undisturbed one does.
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def add(self, shares: Mapping[str, Tensor]) -> None:
        """Adds a step.

        Args:
            shares: This rank's share of each loss, by name; a loss that is not in every step is
                averaged over the steps that have it.
        """
        for name, share in shares.items():
            value = share.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.counts[name] = self.counts.get(name, 0) + 1

    def take(self, ranks: Ranks) -> dict[str, float]:
        """The mean losses of the steps since the last call; called on all ranks."""
        losses = self.means(ranks)
        self.sums, self.counts = {}, {}
        return losses

    def means(self, ranks: Ranks) -> dict[str, float]:
        """The mean losses that `take` would return, which stay in the sums; called on all ranks."""
        state = self.state(ranks)
        return {name: total / count for name, (total, count) in state.items()}

    def state(self, ranks: Ranks) -> dict[str, tuple[float, int]]:
        """Sum over all ranks divided by their number, and number of steps, by loss.

        All ranks call this together.
        """
        totals = ranks.all_reduce_sum(self.sums)
        return {
            name: (total.item() / ranks.world, self.counts[name]) for name, total in totals.items()
        }

    def restore(self, state: Mapping[str, Any], device: str) -> None:
        """Continues from a state that `state` returned."""
        self.sums = {
            name: torch.tensor(total, dtype=torch.float64, device=device)
            for name, (total, _) in state.items()
        }
        self.counts = {name: int(count) for name, (_, count) in state.items()}
