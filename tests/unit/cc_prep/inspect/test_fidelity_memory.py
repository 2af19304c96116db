"""Fidelity holds no more images in memory than it measures, and these in the size that it needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.inspect import fidelity


def sample(key: str) -> TrainingSample:
    return TrainingSample(key, {}, np.zeros((2, 1, 1), np.int16), np.zeros((2, 0, 2)), {})


def test_shards_are_read_side_by_side() -> None:
    """Keeps away: all frames of a shard in memory, of which a few are measured."""
    was_read: list[str] = []

    def stored() -> Iterator[StoredSequence]:
        for key in "abcdefgh":
            was_read.append(key)
            yield StoredSequence(key, {}, {})

    # A sample without a sequence, x, and one whose sequence is not measured, a, take none along.
    pairs = fidelity.matched(stored(), map(sample, "axbcf"), set("bcf"))
    first, _ = next(pairs)
    assert (first.key, was_read) == ("b", ["a", "b"])
    assert [(one.key, other.key) for one, other in pairs] == [("c", "c"), ("f", "f")]


def test_images_are_kept_in_the_size_that_is_measured() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 48, 3), np.uint8)
    pairs = [(image, image[::-1])] * 3
    small = fidelity.sides(iter(pairs), 16)
    assert [[one.shape for one in side] for side in small] == [[(16, 16, 3)] * 3] * 2
    generated, real = fidelity.sides(iter(pairs * 400), None)
    assert len(generated) == len(real) == fidelity.MAX_IMAGES
    assert np.array_equal(real[0], image[::-1])
