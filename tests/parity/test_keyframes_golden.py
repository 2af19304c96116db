"""Penalties, weights and probabilities are ProCap's; drawing follows them."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.manifest import Strategy
from cc_prep.steps.score import choose_keyframes, draw_weights, penalties, probabilities
from tests.conftest import golden

CASES = [
    case
    for folder in golden("confidence_sampling")
    for case in json.loads((folder / "cases.json").read_text())["cases"]
]
STRATEGIES = ("confidence", "top", "uniform", "random", "visual")


def test_there_are_golden_vectors() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_same_penalties_and_probabilities(case: dict) -> None:
    scores = (np.array(case[name], np.float32) for name in ("bef_inter_sim", "inter_aft_sim"))
    penalty = penalties(*scores)
    assert np.allclose(penalty, case["penalty"], rtol=1e-4, atol=1e-5)
    assert np.allclose(draw_weights(penalty), case["weights"], atol=1e-4)
    if "probabilities" in case:
        assert np.allclose(probabilities(penalty), case["probabilities"], atol=1e-4)


def test_drawing_follows_the_probabilities() -> None:
    case = CASES[0]
    penalty = np.array(case["penalty"], np.float32)
    rng = np.random.default_rng(0)
    first = Counter(choose_keyframes(penalty, 1, "confidence", rng)[1] for _ in range(20_000))
    frequencies = [first[i] / 20_000 for i in range(1, len(penalty) - 1)]
    assert np.allclose(frequencies, probabilities(penalty), atol=0.015)


@given(
    st.lists(st.floats(0, 1e4, width=32), min_size=3, max_size=33),
    st.integers(0, 31),
    st.sampled_from(STRATEGIES),
)
def test_keyframes_are_ordered_distinct_and_have_both_ends(
    penalty: list[float], k: int, strategy: Strategy
) -> None:
    array, rng = np.array(penalty, np.float32), np.random.default_rng(0)
    if k > len(penalty) - 2:
        with pytest.raises(ValueError, match="keyframes asked for"):
            choose_keyframes(array, k, strategy, rng)
        return
    keyframes = choose_keyframes(array, k, strategy, rng)
    assert keyframes == sorted(set(keyframes))
    assert len(keyframes) == k + 2
    assert (keyframes[0], keyframes[-1]) == (0, len(penalty) - 1)
    if strategy == "top":
        left = set(range(1, len(penalty) - 1)) - set(keyframes)
        assert all(array[i] <= array[j] for i in keyframes[1:-1] for j in left)


def test_uniform_is_even() -> None:
    penalty = np.zeros(9, np.float32)
    assert choose_keyframes(penalty, 1, "uniform") == [0, 4, 8]
    assert choose_keyframes(penalty, 3, "uniform") == [0, 2, 4, 6, 8]
    assert choose_keyframes(penalty, 7, "uniform") == list(range(9))
