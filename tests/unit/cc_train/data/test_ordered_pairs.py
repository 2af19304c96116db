"""Batches of ordered pairs: which images, in which order, with what is said and known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.records import FACT_TYPES, REVERSED, Facts
from cc_prep.synth.facts import attributes as solid
from cc_train.data import supervision
from cc_train.data.collate import FeatureSource
from cc_train.data.ordered_pairs import OrderedPairBatches, draw, ordered_pairs
from cc_train.text import Vocabulary
from tests import pair_factory

KINDS = {kind: number for number, kind in enumerate(pair_factory.SENTENCES)}
WORDS = Vocabulary.of(
    [
        "nothing changed",
        *(
            pair_factory.facts_caption(ordered_pairs(pair_factory.scene(n)).pairs[0].facts)
            for n in range(40)
        ),
    ],  # type: ignore[arg-type]
    1,
)


@pytest.mark.parametrize("kind", KINDS)
def test_six_pairs_of_a_scene(kind: str) -> None:
    """Before, after and the view without a change, each with each, both ways."""
    scene = ordered_pairs(pair_factory.scene(KINDS[kind]))
    before, after, view = range(3)
    assert len(scene.features) == 3, "the image that both samples share stands there once"
    orders = [(pair.first, pair.second) for pair in scene.pairs]
    assert sorted(orders) == sorted(
        [
            (before, after),
            (after, before),
            (view, after),
            (after, view),
            (before, view),
            (view, before),
        ]
    )
    backwards = REVERSED.get(kind, kind)
    for pair in scene.pairs:
        assert pair.facts is not None
        expected = {True: kind if pair.second == after else backwards, False: "none"}
        assert pair.facts.type == expected[pair.changed]
        assert pair.changed == (after in (pair.first, pair.second))
        if pair.changed:
            assert pair.captions == (pair_factory.facts_caption(pair.facts),)
        else:
            assert pair.captions == ("nothing changed",)


def test_facts_are_those_of_the_pair_s_own_images() -> None:
    """Keeps away: a place of the first view used in another one."""
    changed, unchanged = pair_factory.scene(KINDS["color"])
    moved = [
        {**attributes, "location": (attributes["location"][0], 0.99)}
        for attributes in unchanged.meta["facts"]["objects_after"]
    ]
    unchanged.meta["facts"]["objects_after"] = moved
    scene = ordered_pairs([changed, unchanged])
    from_view = next(pair for pair in scene.pairs if (pair.first, pair.second) == (2, 1))
    assert from_view.facts is not None
    assert from_view.facts.before is not None
    assert from_view.facts.before.location[1] == 0.99
    assert from_view.facts.before["color"] == changed.meta["facts"]["before"]["color"]


def test_without_facts_only_what_is_known_is_turned_round() -> None:
    """A caption of a change is true in one order alone; that nothing changed, in both."""
    samples = pair_factory.scene(0)
    for sample in samples:
        del sample.meta["facts"]
    orders = [(pair.first, pair.second) for pair in ordered_pairs(samples).pairs]
    assert sorted(orders) == [(0, 1), (0, 2), (2, 0), (2, 1)]
    batch = OrderedPairBatches(WORDS, 12, 3, pair_factory.SOURCE)(
        samples, [np.random.default_rng(0)] * 2
    )
    assert (batch["facts"] == supervision.UNKNOWN).all()
    assert (batch["places"] == supervision.UNKNOWN).all()
    assert len(batch["object_image"]) == 0
    assert not batch["has_objects"].any()


@given(st.integers(1, 6), st.integers(0, 10**6))
def test_one_of_the_drawn_pairs_is_unchanged(count: int, seed: int) -> None:
    pairs = ordered_pairs(pair_factory.scene(0)).pairs
    numbers = draw(pairs, count, np.random.default_rng(seed))
    assert len(numbers) == len(set(numbers)) == min(count, 5)
    if count > 1:
        assert sum(not pairs[number].changed for number in numbers) == 1


def test_single_draws_are_of_both_kinds() -> None:
    """Keeps away: a captioner that never sees an unchanged pair."""
    pairs = ordered_pairs(pair_factory.scene(0)).pairs
    drawn = [draw(pairs, 1, np.random.default_rng(seed))[0] for seed in range(60)]
    assert {pairs[number].changed for number in drawn} == {True, False}


def test_every_part_of_a_batch_is_of_its_own_pair() -> None:
    """Keeps away: features, captions or facts that belong to the neighbouring scene."""
    samples = [sample for number in range(6) for sample in pair_factory.scene(number)]
    rngs = [np.random.default_rng(i) for i in range(len(samples))]
    batch = OrderedPairBatches(WORDS, 12, 3, pair_factory.SOURCE)(samples, rngs)
    assert batch["features"].shape == (18, pair_factory.CHANNELS, 4, 4)
    assert len(batch["first"]) == len(batch["ids"]) == 18
    for pair in range(18):
        first, second = int(batch["first"][pair]), int(batch["second"][pair])
        assert first // 3 == second // 3 == pair // 3
        kind, color, *_ = batch["facts"][pair].tolist()
        text = WORDS.decode(batch["ids"][pair, 1:].tolist())
        if FACT_TYPES[kind] == "none":
            assert text == "nothing changed"
            continue
        assert supervision.SOLIDS.attributes["color"][color] in text.split()
        end = second if FACT_TYPES[kind] == "add" else first
        row, column = divmod(int(batch["places"][pair, int(end == second)]), 4)
        assert batch["features"][end, color, row, column] == 1
    for image, place, attributes in zip(
        batch["object_image"], batch["object_location"], batch["object_attributes"], strict=True
    ):
        column, row = (int(x) for x in place * 4)
        assert batch["features"][image, int(attributes[0]), row, column] == 1
        assert batch["centres"][image, row, column] == 1
    assert batch["has_objects"].all()
    assert int(batch["centres"].sum()) == len(batch["object_image"])


def test_the_same_dice_give_the_same_batch() -> None:
    samples = [sample for number in range(3) for sample in pair_factory.scene(number)]
    batches = [
        OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE)(
            samples, [np.random.default_rng(i) for i in range(6)]
        )
        for _ in range(2)
    ]
    for name, value in batches[0].items():
        assert torch.equal(value, batches[1][name]), name


def test_shards_without_features_say_what_to_build() -> None:
    sample = pair_factory.scene(0)[0]
    bare = type(sample)(sample.key, sample.meta, sample.tokens, sample.scores, {})
    with pytest.raises(UserError, match="no features"):
        OrderedPairBatches(WORDS, 12, 1, pair_factory.SOURCE)([bare], [np.random.default_rng(0)])


def test_features_of_two_backbones_are_refused() -> None:
    """Keeps away: a captioner that is trained on features of two networks."""
    with pytest.raises(UserError, match="holds features"):
        OrderedPairBatches(WORDS, 12, 1, FeatureSource("planted", "1" * 64))(
            pair_factory.scene(0), [np.random.default_rng(0)] * 2
        )


def test_images_of_two_sizes_are_refused() -> None:
    one, other = pair_factory.scene(0), pair_factory.scene(1)
    assert other[0].features is not None
    small = replace(other[0].features, values=other[0].features.values[..., :2])
    samples = [*one, replace(other[0], features=small)]
    with pytest.raises(UserError, match="Build the shards with one image_size"):
        OrderedPairBatches(WORDS, 12, 1, pair_factory.SOURCE)(
            samples, [np.random.default_rng(0)] * 3
        )


def test_a_view_whose_objects_are_not_known_lends_no_facts() -> None:
    """Keeps away: a traceback on shards of which only some pairs have facts."""
    changed, unchanged = pair_factory.scene(KINDS["color"])
    del unchanged.meta["facts"]
    scene = ordered_pairs([changed, unchanged])
    from_view = next(pair for pair in scene.pairs if (pair.first, pair.second) == (2, 1))
    assert from_view.facts is None


def test_a_word_that_no_class_has_is_one_line() -> None:
    """Keeps away: a ValueError of a tuple's index in a loader worker, of other words."""
    mauve = solid("mauve", "cube", "metal", "small", (0.5, 0.5))
    with pytest.raises(UserError, match="'mauve' is no color that can be learned"):
        supervision.SOLIDS.classes_of_object(mauve)
    with pytest.raises(UserError, match="mauve"):
        supervision.SOLIDS.classes(
            Facts("color", replace(mauve, values={**mauve.values, "color": "red"}), mauve)
        )
