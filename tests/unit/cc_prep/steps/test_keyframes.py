"""Keyframe rules hold for any penalties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.manifest import Strategy
from cc_prep.steps.score import choose_keyframes, fixed_keyframes

PENALTIES = st.lists(st.floats(0, 1e4, allow_nan=False, width=32), min_size=3, max_size=33).map(
    np.float32
)
STRATEGIES: tuple[Strategy, ...] = ("confidence", "top", "uniform", "random", "visual")


@given(PENALTIES, st.sampled_from(STRATEGIES), st.floats(0, 1e4), st.integers(0, 99), st.data())
def test_both_ends_and_k_between(
    penalty: np.ndarray, strategy: Strategy, threshold: float, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(penalty) - 2))
    rng = np.random.default_rng(seed)
    for keyframes in (
        choose_keyframes(penalty, k, strategy, rng, threshold),
        fixed_keyframes(penalty, k, strategy),
    ):
        assert keyframes == sorted(set(keyframes))
        assert len(keyframes) == k + 2
        assert (keyframes[0], keyframes[-1]) == (0, len(penalty) - 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_penalties_that_are_not_finite_are_refused(strategy: Strategy, value: float) -> None:
    """Keeps away: frames that are drawn by chances of NaN."""
    penalty = np.float32([0, 1, value, 2, 0])
    with pytest.raises(ValueError, match="a penalty is no finite number"):
        choose_keyframes(penalty, 1, strategy, np.random.default_rng(0))


@pytest.mark.parametrize("strategy", ["confidence", "random", "visual"])
def test_frames_over_the_threshold_come_last(strategy: Strategy) -> None:
    penalty = np.float32([9, 1, 8, 2, 7, 3, 9])
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert choose_keyframes(penalty, 3, strategy, rng, 5.0) == [0, 1, 3, 5, 6]
        keyframes = choose_keyframes(penalty, 4, strategy, rng, 5.0)
        assert {1, 3, 5} < set(keyframes)


def test_the_rule_without_its_dice() -> None:
    penalty = np.float32([9, 5, 1, 2, 6, 9])
    assert fixed_keyframes(penalty, 2, "confidence") == [0, 2, 3, 5]
    assert fixed_keyframes(penalty, 2, "visual") == [0, 2, 3, 5]
    assert fixed_keyframes(penalty, 1, "random") == [0, 2, 5]
