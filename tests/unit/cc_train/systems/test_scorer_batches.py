"""SCORER's batches: two halves, the swap of views, and scenes that lack a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_train.data.collate import FeatureSource
from cc_train.systems.scorer.batches import ScorerBatches
from tests import network_factory, pair_factory
from tests.network_factory import SAMPLES, WORDS


def marked(number: int) -> TrainingSample:
    """A sample whose first image is all 0, and its second one all 1 or, of a view, all 2."""
    sample = SAMPLES[number]
    assert sample.features is not None
    array = np.zeros_like(sample.features.values)
    array[1] = 1 + number % 2
    return replace(sample, features=replace(sample.features, values=array))


def shown(batch: dict[str, Any]) -> list[list[float]]:
    """Which images the first pair of each half shows."""
    halves = ("changed", "unchanged")
    return [batch[half]["before_after"][0].amax((1, 2, 3)).tolist() for half in halves]


def values(number: int) -> np.ndarray:
    features = SAMPLES[number].features
    assert features is not None
    return features.values


def test_a_scene_gives_a_pair_to_each_run() -> None:
    batch = network_factory.scorer_batch(SAMPLES[:4], swap=0.0)
    for half, numbers in (("changed", (0, 2)), ("unchanged", (1, 3))):
        part = batch[half]
        assert part["before_after"].dtype == torch.float16
        for row, number in enumerate(numbers):
            assert (part["before_after"][row].numpy() == values(number)).all()
            ids = part["ids"][row].tolist()
            assert WORDS.decode(ids) == SAMPLES[number].meta["captions"][0]


def test_swapped_views_keep_after_and_captions() -> None:
    """Keeps away: a changed pair whose after image is swapped, or a view that is compared with
    itself.
    """
    scene = [marked(0), marked(1)]
    assert shown(network_factory.scorer_batch(scene, swap=0.0)) == [[0, 1], [0, 2]]
    assert shown(network_factory.scorer_batch(scene, swap=1.0)) == [[2, 1], [2, 0]]


def test_half_of_the_scenes_are_swapped() -> None:
    scene = [marked(0), marked(1)]
    swapped = [shown(network_factory.scorer_batch(scene, seed))[0] == [2, 1] for seed in range(200)]
    assert 80 < sum(swapped) < 120


def test_a_scene_of_one_pair_is_left_as_it_is() -> None:
    """Keeps away: pairs without a distractor, as of Spot-the-Diff, that fail or are swapped."""
    batch = network_factory.scorer_batch([SAMPLES[0]], swap=1.0)
    assert (batch["changed"]["before_after"][0].numpy() == values(0)).all()
    assert batch["unchanged"]["before_after"].shape == (0, 2, *pair_factory.BACKBONE.grid)
    assert batch["unchanged"]["ids"].shape == (0, network_factory.LENGTH)
    other = replace(SAMPLES[1], meta={**SAMPLES[1].meta, "before": "another.png"})
    batch = network_factory.scorer_batch([SAMPLES[0], other], swap=1.0)
    assert (batch["changed"]["before_after"][0].numpy() == values(0)).all()


def test_pairs_know_their_scene() -> None:
    """Keeps away: a contrast that takes the other pairs of a scene for wrong ones, also where
    another process has these, or where the scene comes twice in a batch."""
    batch = network_factory.scorer_batch(SAMPLES[:6], swap=0.0)
    first, second, third = batch["changed"]["scene"].tolist()
    assert len({first, second, third}) == 3
    assert batch["unchanged"]["scene"].tolist() == [first, second, third]
    assert network_factory.scorer_batch([SAMPLES[0]])["unchanged"]["scene"].shape == (0,)
    apart = [*SAMPLES[2:6], *SAMPLES[2:4]]
    assert network_factory.scorer_batch(apart)["changed"]["scene"].tolist() == [
        second,
        third,
        second,
    ]
    make = ScorerBatches(WORDS, network_factory.LENGTH, pair_factory.SOURCE, pairs_per_scene=4)
    batch = make(apart, list(np.random.default_rng(0).spawn(6)))
    assert batch["changed"]["scene"].tolist() == [second] * 3 + [third] * 3 + [second] * 3
    assert batch["unchanged"]["scene"].tolist() == [second, third, second]


def test_features_of_other_weights_are_refused() -> None:
    make = ScorerBatches(WORDS, network_factory.LENGTH, FeatureSource("planted", "1" * 64))
    with pytest.raises(UserError, match=", not of"):
        make(SAMPLES[:1], [np.random.default_rng(0)])
    assert pair_factory.DIGEST != "1" * 64
