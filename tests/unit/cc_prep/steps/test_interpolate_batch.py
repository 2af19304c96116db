"""Sequences have the right frames in the right order, whatever makes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.steps import interpolate
from cc_prep.steps.interpolate import CrossFade, DenseFlow, recurse, times


def constant(value: int, height: int = 4, width: int = 5) -> np.ndarray:
    return np.full((1, height, width, 3), value, np.uint8)


def mean(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return ((left.astype(int) + right) // 2).astype(np.uint8)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 7))
@settings(max_examples=30)
def test_recursion_is_ordered_and_level_batched(depth: int, pairs: int, most: int) -> None:
    """Keeps away: frames of one pair in another's sequence, levels out of order."""
    calls = []

    def midpoints(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        calls.append(len(left))
        return mean(left, right)

    before = np.concatenate([constant(0)] * pairs)
    after = np.concatenate([constant(64 * (i + 1) - 64 + 64) for i in range(pairs)])
    frames = recurse(midpoints, before, after, depth, most)
    assert frames.shape == (pairs, 2**depth + 1, 4, 5, 3)
    for number in range(pairs):
        top = int(after[number].max())
        assert [int(f.max()) for f in frames[number]] == [
            top * i // 2**depth for i in range(2**depth + 1)
        ]
    assert max(calls) <= most
    assert sum(calls) == pairs * (2**depth - 1)


def test_crossfade_is_linear() -> None:
    frames = CrossFade().interpolate_batch(constant(0), constant(80), 3)[0]
    assert [int(frame.mean()) for frame in frames] == [0, 10, 20, 30, 40, 50, 60, 70, 80]
    assert times(3) == [i / 8 for i in range(9)]


def texture(height: int, width: int) -> np.ndarray:
    import cv2

    noise = np.random.default_rng(0).integers(0, 256, (height, width + 40, 3), np.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 3)


def test_dis_follows_a_shift() -> None:
    """Keeps away: a flow with the wrong sign, which a cross-fade would hide."""
    wide = texture(96, 128)
    before, after = wide[None, :, 20:148], wide[None, :, 12:140]
    frames = DenseFlow().interpolate_batch(before, after, 1)[0]
    true = wide[:, 16:144]
    inner = np.s_[16:-16, 16:-16]
    error = np.abs(frames[1][inner].astype(int) - true[inner]).mean()
    faded = np.abs(
        CrossFade().interpolate_batch(before, after, 1)[0][1][inner].astype(int) - true[inner]
    ).mean()
    assert error < faded / 4


@pytest.mark.parametrize("small", [24, 40, 45])
def test_dis_of_a_pair_does_not_depend_on_the_pairs_before(small: int) -> None:
    """Keeps away: frames that depend on the order of shards, after a pair of at most 45 px."""

    def shifted(side: int) -> tuple[np.ndarray, np.ndarray]:
        wide = texture(side, side + 2).astype(np.float32)
        wide = ((wide - wide.min()) / np.ptp(wide) * 255).astype(np.uint8)
        return wide[None, :, 2 : side + 2], wide[None, :, :side]

    alone = DenseFlow().interpolate_batch(*shifted(112), 2)
    one = DenseFlow()
    first = one.interpolate_batch(*shifted(small), 2)
    assert np.array_equal(one.interpolate_batch(*shifted(112), 2), alone)
    assert np.array_equal(one.interpolate_batch(*shifted(small), 2), first)


@pytest.mark.parametrize("maker", [CrossFade, DenseFlow])
def test_ends_are_kept_bit_for_bit(maker: type) -> None:
    before, after = texture(40, 24)[None], texture(40, 24)[None, ::-1]
    frames = maker().interpolate_batch(before, after, 2)[0]
    assert np.array_equal(frames[0], before[0])
    assert np.array_equal(frames[-1], after[0])
    assert frames.shape[0] == 5


@pytest.mark.parametrize("maker", [CrossFade, DenseFlow])
def test_equal_ends_give_equal_frames(maker: type) -> None:
    """Keeps away: a static pair whose frames are dropped or blurred."""
    image = texture(32, 24)[None]
    assert (maker().interpolate_batch(image, image, 2) == image[:, None]).all()


def test_make_knows_every_method() -> None:
    from cc_prep.manifest import Interpolate

    assert isinstance(interpolate.make(Interpolate(method="dis"), None, "cpu"), DenseFlow)
    assert isinstance(interpolate.make(Interpolate(method="crossfade"), None, "cpu"), CrossFade)
