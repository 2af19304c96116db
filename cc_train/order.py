"""Which items a step sees: pure functions of seed and step, so that any run can go on anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


def items_of_step(step: int, batch_size: int, count: int, seed: int) -> np.ndarray:
    """Numbers of the items of a step's batch, int64 [batch_size].

    All items are seen once before any is seen again; each epoch has its own order. A batch may
    reach into the next epoch.
    """
    assert count > 0
    positions = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, places = np.divmod(positions, count)
    orders = {int(e): np.random.default_rng([seed, 0, e]).permutation(count) for e in set(epochs)}
    return np.array([orders[int(e)][p] for e, p in zip(epochs, places, strict=True)])


def rng_of(seed: int, step: int, place: int = 0) -> np.random.Generator:
    """The dice of one place of a step's batch, for crops and captions."""
    return np.random.default_rng([seed, 1, step, place])


def hold_out(items: Sequence[T], ids: Sequence[str], share: float) -> tuple[list[T], list[T]]:
    """(training, held out) items; those of one id stay together, chosen by a digest of the id.

    At least one id is held out, and at least one is not, if there are two.
    """
    import hashlib

    ranked = sorted(set(ids), key=lambda id: hashlib.sha256(id.encode("utf-8")).digest())
    count = min(max(1, round(share * len(ranked))), len(ranked) - 1)
    chosen = set(ranked[:count])
    pairs = list(zip(items, ids, strict=True))
    return [i for i, id in pairs if id not in chosen], [i for i, id in pairs if id in chosen]
