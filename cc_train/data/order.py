"""The items of each step: pure functions of seed and step, so that any run can be resumed."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Purpose(IntEnum):
    """What random numbers are for: a part of their seed, so that no two draw the same ones."""

    BATCH_ORDER = 0  # `items_of_step`
    PLACE = 1  # `rng_of`
    EPOCH_ORDER = 2  # `epoch_order`
    POSITION = 3  # `rng_at`


def items_of_step(step: int, batch_size: int, count: int, seed: int) -> np.ndarray:
    """Numbers of the items of a step's batch, int64 [batch_size].

    All items are seen once before any is seen again; each epoch has its own order. A batch may
    reach into the next epoch.
    """
    assert count > 0
    positions = np.arange(step * batch_size, (step + 1) * batch_size)
    epochs, places = np.divmod(positions, count)
    pairs = zip(epochs, places, strict=True)
    return np.array([_permutation(seed, int(epoch), count)[place] for epoch, place in pairs])


@lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, count: int) -> np.ndarray:
    """The order of all items in an epoch of `items_of_step`, int64 [count]; not to be changed.

    It is the same for all batches of the epoch, and takes milliseconds for half a million items.
    """
    return np.random.default_rng([seed, Purpose.BATCH_ORDER, epoch]).permutation(count)


def positions_of(micro: int, batch_size: int, rank: int, world: int) -> range:
    """The positions in the endless order that a rank's micro-batch takes.

    Args:
        micro: The number of the micro-batch, from 0. The micro-batches of all ranks are adjacent,
            so two ranks together see the same as one rank with twice the batch, and all ranks have
            the same number of batches.
    """
    first = (micro * world + rank) * batch_size
    return range(first, first + batch_size)


@lru_cache(maxsize=4)
def epoch_order(counts: tuple[int, ...], epoch: int, seed: int, buffer: int) -> np.ndarray:
    """The order of the items in an epoch: their numbers, int64 [sum of counts].

    Args:
        counts: The number of items in each shard. The shards are shuffled first, and then the items
            within windows of `buffer` items, so that neighbours in the order come from few shards.
            The windows begin at another position in each epoch.
    """
    rng = np.random.default_rng([seed, Purpose.EPOCH_ORDER, epoch])
    starts = np.concatenate(([0], np.cumsum(counts)))
    parts = [np.arange(starts[i], starts[i + 1]) for i in rng.permutation(len(counts))]
    order = np.concatenate(parts).astype(np.int64)
    first = int(rng.integers(buffer)) if len(order) > buffer else 0
    ends = [0, *range(first or buffer, len(order), buffer), len(order)]
    for start, end in itertools.pairwise(ends):
        rng.shuffle(order[start:end])
    return order


def rng_at(seed: int, position: int) -> np.random.Generator:
    """The random generator of a position in the endless order: keyframes, captions and masks."""
    return np.random.default_rng([seed, Purpose.POSITION, position])


def rng_of(seed: int, step: int, place: int = 0) -> np.random.Generator:
    """The random generator of one item of a step's batch: crops, captions and variations."""
    return np.random.default_rng([seed, Purpose.PLACE, step, place])


def sample(items: Sequence[T], keys: Sequence[str], count: int) -> list[T]:
    """At most `count` of the items, in their order, chosen by a digest of their keys.

    The choice is spread over all items, does not depend on their order, and is the same each time.
    """
    digests = [hashlib.sha256(key.encode("utf-8")).digest() for key in keys]
    chosen = sorted(range(len(items)), key=digests.__getitem__)[:count]
    return [items[number] for number in sorted(chosen)]


def hold_out(
    items: Sequence[T], ids: Sequence[str], share: float, least: int = 1
) -> tuple[list[T], list[T]]:
    """The items to train on, and those held out.

    Args:
        ids: The id of each item; items of one id stay together.
        share: The share of the ids to hold out, from 0 to 1.
        least: The least number of ids to hold out; it never raises the share above a fifth. A
            digest of the id decides, so the choice does not depend on the order. With two ids or
            more each part has at least one; with one id nothing is held out.
    """
    ranked = sorted(set(ids), key=lambda id: hashlib.sha256(id.encode("utf-8")).digest())
    few = min(least, len(ranked) // 5)
    count = min(max(1, few, round(share * len(ranked))), len(ranked) - 1)
    chosen = set(ranked[:count])
    pairs = list(zip(items, ids, strict=True))
    return [i for i, id in pairs if id not in chosen], [i for i, id in pairs if id in chosen]
