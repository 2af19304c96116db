"""The order of samples, written down: a resumed run has to go on in the order that it began in."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_train.data import order


def test_orders_stay_as_they_are() -> None:
    """Keeps away: a release whose resumed runs see some samples twice and others never."""
    counts = (3, 2, 4)
    assert order.epoch_order(counts, 0, 7, 4).tolist() == [7, 8, 5, 6, 4, 3, 1, 0, 2]
    assert order.epoch_order(counts, 1, 7, 4).tolist() == [7, 8, 5, 6, 0, 1, 3, 4, 2]
    assert order.epoch_order(counts, 0, 7, 9).tolist() == [6, 4, 8, 3, 0, 1, 5, 2, 7]
    steps = [order.items_of_step(step, 4, 6, 7).tolist() for step in range(3)]
    assert steps == [[5, 2, 0, 4], [1, 3, 2, 3], [4, 1, 0, 5]]


def test_an_epoch_is_permuted_once() -> None:
    """Keeps away: half a million numbers that are shuffled for each batch of 16 of them."""
    order._permutation.cache_clear()
    for step in range(10):
        order.items_of_step(step, 4, 36, 7)
    assert order._permutation.cache_info().misses == 2


def test_dice_stay_as_they_are() -> None:
    assert order.rng_at(7, 5).integers(1000, size=3).tolist() == [547, 49, 604]
    assert order.rng_of(7, 5).integers(1000, size=3).tolist() == [147, 550, 117]
    assert order.rng_of(7, 5, 1).integers(1000, size=3).tolist() == [563, 418, 766]


def test_shards_come_in_another_order_each_epoch() -> None:
    """Keeps away: a window that moves over the shards always in their own order."""
    counts = (3, 2, 4, 1, 5)
    starts = np.concatenate(([0], np.cumsum(counts)))
    shard_of = np.repeat(np.arange(len(counts)), counts)
    orders = []
    for epoch in range(6):
        epoch_order = order.epoch_order(counts, epoch, 0, 1)  # nothing is shuffled within a shard
        shards = [int(shard) for shard, _ in itertools.groupby(shard_of[epoch_order])]
        assert sorted(shards) == list(range(len(counts))), "each shard is read in one go"
        expected = [i for s in shards for i in range(starts[s], starts[s + 1])]
        assert epoch_order.tolist() == expected
        orders.append(tuple(shards))
    assert len(set(orders)) > 4


def test_windows_begin_elsewhere_each_epoch() -> None:
    """Keeps away: two samples that are never shuffled together, because a window ends there."""
    together = np.zeros(39, bool)
    for epoch in range(30):
        epoch_order = order.epoch_order((40,), epoch, 0, 8)
        places = np.argsort(epoch_order)
        together |= places[:-1] > places[1:]
    assert together.all(), "some epoch swaps any two neighbours"


def test_a_window_is_no_longer_than_the_buffer() -> None:
    """Keeps away: more samples in memory, or shards open, than the settings say."""
    for epoch in range(10):
        epoch_order = order.epoch_order((40,), epoch, 0, 8)
        assert np.abs(epoch_order - np.arange(40)).max() < 8


def test_streams_of_chance_are_apart() -> None:
    """Keeps away: a caption that is always drawn with the same mask, as both use one stream."""
    drawn = [
        order.rng_at(5, 2).integers(1 << 60),
        order.rng_of(5, 2).integers(1 << 60),
        order.rng_of(5, 2, 1).integers(1 << 60),
        np.random.default_rng([5, 0, 2]).integers(1 << 60),  # the order of the items
        np.random.default_rng([5, 2, 2]).integers(1 << 60),  # the order of an epoch
    ]
    assert len(set(drawn)) == len(drawn)


def test_who_is_held_out_stays_as_it_is() -> None:
    """Keeps away: a resumed run whose validation has samples that it was trained on."""
    items, ids = list(range(8)), list("aabbccde")
    assert order.hold_out(items, ids, 0.25) == ([0, 1, 2, 3, 4, 5, 7], [6])
    assert order.hold_out(items, ids, 0.0) == ([0, 1, 2, 3, 4, 5, 7], [6]), "at least one"
    assert len(order.hold_out("abcdefghij", "abcdefghij", 0.0)[1]) == 1
    train, held_out = order.hold_out(items, ids, 0.6)
    assert len({ids[i] for i in held_out}) == 3
    train, _ = order.hold_out(items, ids, 1.0)
    assert len({ids[i] for i in train}) == 1, "at least one for training"
    assert order.hold_out([1], ["a"], 0.5) == ([1], [])


@pytest.mark.parametrize(
    ("ids", "count"), [(2, 1), (9, 1), (10, 2), (20, 4), (25, 5), (99, 5), (100, 5), (300, 15)]
)
def test_small_data_hold_out_some_ids(ids: int, count: int) -> None:
    """Keeps away: a training on 25 scenes of one's own whose checkpoint one pair chooses."""
    names = list(map(str, range(ids)))
    _, held_out = order.hold_out(names, names, 0.05, least=5)
    assert len(held_out) == count
    assert set(order.hold_out(names, names, 0.05)[1]) <= set(held_out)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 5), st.integers(0, 1000))
def test_every_item_once_an_epoch(count: int, batch: int, epochs: int, seed: int) -> None:
    steps = -(-count * epochs // batch)
    seen = [int(i) for s in range(steps) for i in order.items_of_step(s, batch, count, seed)]
    for epoch in range(epochs):
        part = seen[epoch * count : (epoch + 1) * count]
        assert sorted(part) == list(range(count))


@given(st.lists(st.integers(0, 20), min_size=2), st.floats(0.01, 0.99))
def test_no_id_in_both_parts(ids: list[int], share: float) -> None:
    names = [str(i) for i in ids]
    train, held_out = order.hold_out(names, names, share)
    assert not set(train) & set(held_out)
    assert Counter(train) + Counter(held_out) == Counter(names)
    if len(set(names)) > 1:
        assert train
        assert held_out
