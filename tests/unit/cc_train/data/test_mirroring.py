"""A mirrored scene is mirrored in all that is said and known of it, with all its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media.images import encode_image
from cc_prep.records import Facts
from cc_train.data.mirroring import MirroredBatches, exchange_sides, mirrored
from cc_train.data.ordered_pairs import ordered_pairs
from tests import pair_factory


def with_mirror(sample: TrainingSample) -> TrainingSample:
    """Planted features, whose mirror is the flipped grid."""
    assert sample.features is not None
    flipped = np.ascontiguousarray(sample.features.values[..., ::-1])
    return replace(sample, features=replace(sample.features, mirrored=flipped))


def scene(number: int) -> list[TrainingSample]:
    return [with_mirror(sample) for sample in pair_factory.scene(number)]


def samples_of(samples: Sequence[TrainingSample], rngs: Sequence[Any]) -> dict[str, Any]:
    return {"samples": list(samples), "draws": [rng.random() for rng in rngs]}


@pytest.mark.parametrize("number", range(5))
def test_places_go_with_the_features(number: int) -> None:
    """Keeps away: a caption's object that is looked for where it was before the mirror."""
    for sample in scene(number):
        turned = mirrored(sample)
        facts = Facts.of_sample({**turned.meta, "key": turned.key})
        assert facts is not None
        assert turned.features is not None
        for objects, values in zip(
            (facts.objects_before, facts.objects_after), turned.features.values, strict=True
        ):
            np.testing.assert_array_equal(pair_factory._features(objects), values)


def test_twice_is_never() -> None:
    """A mirror's mirror is the sample, but for images, which no mirrored sample has."""
    sample = scene(0)[0]
    twice = mirrored(mirrored(sample))
    assert twice.features is not None
    assert sample.features is not None
    np.testing.assert_array_equal(twice.features.values, sample.features.values)
    assert twice.meta["captions"] == sample.meta["captions"]
    assert ordered_pairs([twice]).pairs[0].facts == ordered_pairs([sample]).pairs[0].facts


def test_masks_are_mirrored_too() -> None:
    """Keeps away: a change that is looked for on the other side of the image."""
    mask = np.random.default_rng(0).integers(0, 2, (pair_factory.SIDE,) * 2, np.uint8)
    sample = scene(0)[0]
    meta = {**sample.meta, "mask_classes": ["change"]}
    png = encode_image(mask, "png", 0)
    masked = replace(sample, meta=meta, mask_png=png, mask_after_png=png)
    turned = mirrored(masked)
    seen = turned.mask()
    assert seen is not None
    np.testing.assert_array_equal(seen, mask[:, ::-1])
    assert turned.mask_before() is None
    assert turned.mask_after() is not None
    assert mirrored(masked, masks=False) == replace(turned, mask_png=None, mask_after_png=None)


@given(st.lists(st.sampled_from(["left", "Right", "leftover", "the", "ball", "bright,"])))
def test_sides_are_exchanged_as_words(words: list[str]) -> None:
    """Keeps away: `leftover` and `bright` that become other words."""
    caption = " ".join(words)
    turned = exchange_sides(caption).split(" ")
    assert exchange_sides(exchange_sides(caption)) == caption
    others = {"left": "right", "Right": "Left"}
    assert turned == [others.get(word, word) for word in caption.split(" ")]


def test_people_who_left_did_not_go_right() -> None:
    """Keeps away: captions of people and cars that become nonsense."""
    caption = "the man has left the lot, the leftmost car is to the right of the van"
    assert exchange_sides(caption) == (
        "the man has left the lot, the rightmost car is to the left of the van"
    )


def test_found_changes_are_mirrored_too() -> None:
    """Keeps away: a found mask, and phrases of its regions, that stay where they were."""
    change_mask = np.zeros((pair_factory.SIDE,) * 2, np.uint8)
    change_mask[:, :5] = 255
    sample = scene(0)[0]
    meta = {**sample.meta, "regions": [{"box": [0, 0, 5, 9]}], "entities": [["left car", 0.5]]}
    turned = mirrored(replace(sample, meta=meta, change_png=encode_image(change_mask, "png", 0)))
    seen = turned.change()
    assert seen is not None
    np.testing.assert_array_equal(seen, change_mask[:, ::-1] > 0)
    assert "regions" not in turned.meta
    assert turned.meta["entities"] == [["right car", 0.5]]


def test_a_scene_is_mirrored_as_a_whole() -> None:
    """Keeps away: a changed pair of a mirrored image and its unchanged pair of a plain one."""
    scenes = [scene(number) for number in range(40)]
    samples = [sample for one in scenes for sample in one]
    rngs = [np.random.default_rng(number) for number in range(len(samples))]
    batch = MirroredBatches(samples_of, 0.5)(samples, rngs)
    turned = [
        new.features.values is old.features.mirrored
        for new, old in zip(batch["samples"], samples, strict=True)
    ]
    assert turned[::2] == turned[1::2]
    assert 10 < sum(turned[::2]) < 30


def test_without_mirroring_nothing_is_drawn() -> None:
    """Keeps away: runs that change because a setting was added that they do not use."""
    samples = pair_factory.scene(3)
    rngs = [np.random.default_rng(number) for number in range(2)]
    expected = samples_of(samples, [np.random.default_rng(number) for number in range(2)])
    batch = MirroredBatches(samples_of, 0.0)(samples, rngs)
    assert batch["draws"] == expected["draws"]
    assert all(a is b for a, b in zip(batch["samples"], samples, strict=True))


def test_shards_without_mirrored_features_are_named() -> None:
    """Keeps away: a share of mirrored scenes that is silently none."""
    samples = pair_factory.scene(0)
    with pytest.raises(UserError, match=r"features\.mirrored=true"):
        MirroredBatches(samples_of, 1.0)(samples, [np.random.default_rng(0)] * 2)
