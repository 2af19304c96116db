"""The two differences: what counts as a change of a pixel, and what a moved camera may do."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.steps.changes import difference
from tests.pair_factory import composite


def test_hues_of_equal_brightness_differ() -> None:
    """Keeps away: a grey-level difference, for which red and green are one."""
    before, after = np.zeros((2, 20, 20, 3), np.uint8)
    before[:] = (200, 60, 60)
    after[:] = (20, 134, 20)
    after[:, :10] = before[:, :10]
    levels = difference.plain(before, after, blur=0)
    assert levels[:, :10].max() == 0
    assert levels[:, 10:].min() > 40


def test_a_shift_within_the_radius_is_no_change() -> None:
    """Keeps away: edges marked all over because the camera moved by a pixel or two."""
    pair = composite(3, changed=False, shift=(2, -1))
    inner = np.s_[6:-6, 6:-6]  # np.roll brings the other side in
    assert (difference.plain(pair.before, pair.after, 1.0) > 20)[inner].mean() > 0.01
    assert (difference.tolerant(pair.before, pair.after, 3) > 20)[inner].mean() < 0.001


def test_the_inside_of_an_object_is_a_change_for_both() -> None:
    """Keeps away: a tolerance so large that small objects are lost with the edges."""
    pair = composite(4)
    middle = np.argwhere(pair.mask).mean(axis=0).astype(int)
    for levels in (
        difference.plain(pair.before, pair.after, 1.0),
        difference.tolerant(pair.before, pair.after, 3),
    ):
        assert levels[tuple(middle)] > 40


@given(st.integers(0, 2**31), st.integers(1, 4))
def test_both_ways_and_never_more_than_without_tolerance(seed: int, radius: int) -> None:
    """Keeps away: objects that appear seen, and objects that disappear not."""
    rng = np.random.default_rng(seed)
    before, after = rng.integers(0, 256, (2, 24, 30, 3), dtype=np.uint8)
    levels = difference.tolerant(before, after, radius)
    assert np.array_equal(levels, difference.tolerant(after, before, radius))
    assert (levels <= difference.plain(before, after, difference.TOLERANT_BLUR)).all()
    assert difference.tolerant(before, before, radius).max() == 0
