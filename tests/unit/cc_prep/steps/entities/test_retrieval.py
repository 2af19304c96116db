"""Retrieval: golden union of both images, planted phrases found again, no vote for oneself."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.steps.entities.regions import unit
from cc_prep.steps.entities.retrieval import ByNeighbours, ByText, RegionVectors, union_of_best
from tests.conftest import ROOT

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/mllm/regions.json").read_text())[
    "entities"
]


def pair(number: int, vectors: np.ndarray, *phrases: str, scene: str | None = "") -> RegionVectors:
    scene = f"scene {number}" if scene == "" else scene
    return RegionVectors(f"pair {number}", scene, phrases, *vectors)


@pytest.mark.parametrize("k", [1, 2])
def test_golden_union(k: int) -> None:
    """Keeps away: the best of one image alone, and phrases of both that stand in the list twice."""
    rows = [np.array(GOLDEN[f"cosine_{end}"]) for end in ("before", "after")]
    union = union_of_best(rows, GOLDEN["names"], k)
    expected = GOLDEN[f"union_k{k}"]
    assert [one.phrase for one in union] == [phrase for phrase, _ in expected]
    assert [one.score for one in union] == pytest.approx([x for _, x in expected], abs=1e-6)
    assert union[0].phrase == GOLDEN["best_one"]


def test_golden_cosines() -> None:
    """Keeps away: products of vectors that are not of unit length."""
    texts = unit(np.array(GOLDEN["text"]))
    images = [unit(np.array([GOLDEN[end]])) for end in ("before", "after")]
    for end, image in zip(("before", "after"), images, strict=True):
        assert (image @ texts.T)[0] == pytest.approx(GOLDEN[f"cosine_{end}"], abs=1e-6)
    retrieve = ByText(GOLDEN["names"], texts, 1)
    union = retrieve(RegionVectors("x", None, (), *images))
    assert [one.phrase for one in union] == [phrase for phrase, _ in GOLDEN["union_k1"]]


def test_nothing_is_retrieved_for_no_region() -> None:
    """Keeps away: an entity for every unchanged pair."""
    empty = RegionVectors("x", None, (), np.zeros((0, 0)), np.zeros((0, 0)))
    texts = unit(np.eye(4))
    assert ByText(list("abcd"), texts, 2)(empty) == []
    known = [pair(i, unit(np.eye(4))[None, [i]].repeat(2, 0), "a") for i in range(4)]
    assert ByNeighbours(known, ["a"], 1, 4, 0.1)(empty) == []
    assert ByNeighbours([], ["a"], 1, 4, 0.1)(known[0]) == []
    assert union_of_best([np.zeros(3)], list("abc"), 2) == []


def planted(rng: np.random.Generator, count: int) -> tuple[np.ndarray, list[int]]:
    """Vectors of regions, float32 [count, 2, 1, 32], each close to that of one of ten phrases."""
    names = unit(rng.normal(size=(10, 32)))
    which = [i % 10 for i in range(count)]
    noisy = names[which][:, None] + 0.05 * rng.normal(size=(count, 2, 32))
    return unit(noisy.reshape(-1, 32)).reshape(count, 2, 1, 32), which


def test_planted_phrases_are_found_again() -> None:
    """Keeps away: a retriever that is off by one phrase, or a frequent phrase that always wins."""
    rng = np.random.default_rng(0)
    vectors, which = planted(rng, 60)
    names = [f"phrase {i}" for i in range(10)]
    # The first phrase stands in a third of all captions and says nothing.
    pairs = [
        pair(i, vectors[i], names[which[i]], *(["phrase 0"] if i % 3 == 0 and which[i] else []))
        for i in range(60)
    ]
    texts = np.stack([unit(vectors[i, 0])[0] for i in range(10)])
    assert all(ByText(names, texts, 1)(one)[0].phrase == one.phrases[0] for one in pairs)
    vote = ByNeighbours(pairs, names, 1, 4, 0.05)
    answers = [vote(one) for one in pairs]
    assert [one[0].phrase for one in answers] == [names[i] for i in which]


def test_no_scene_votes_for_itself() -> None:
    """Keeps away: entities of training pairs that are right because they were copied."""
    rng = np.random.default_rng(1)
    vectors, _ = planted(rng, 20)
    names = [f"phrase {i}" for i in range(20)]
    pairs = [pair(i, vectors[i], names[i]) for i in range(20)]
    vote = ByNeighbours(pairs, names, 20, 20, 0.05)
    for one in pairs:
        listed = [entity.phrase for entity in vote(one)]
        assert len(listed) == 19
        assert not set(listed) & set(one.phrases)
    # The unchanged pair of the same scene is another pair, and sees no more.
    sibling = pair(3, vectors[3])
    assert names[3] not in [entity.phrase for entity in vote(sibling)]
    # A pair of another split may have the same id, and is no training pair.
    other = pair(3, vectors[3], scene=None)
    assert vote(other)[0].phrase == names[3]


def test_rare_phrases_cannot_be_voted_for() -> None:
    """Keeps away: phrases outside the vocabulary, such as typing errors, in the prompts."""
    vectors, _ = planted(np.random.default_rng(2), 4)
    pairs = [pair(i, vectors[i], "rare", "ball") for i in range(4)]
    [entity] = ByNeighbours(pairs, ["ball"], 5, 4, 0.05)(pairs[0])
    assert entity.phrase == "ball"
    assert 0 < entity.score < 0.2  # it stands in all captions


def test_the_nearest_vote_and_rare_phrases_count_more() -> None:
    """Keeps away: `rubber`, which stands in half of all captions, as the entity of every pair."""
    axes = unit(np.eye(8) + 0.2)
    names = ["red cube", "blue ball", "green car", "rubber"]
    known = [
        pair(i, axes[None, [i % 3]].repeat(2, 0), names[i % 3], *(["rubber"] if i < 9 else []))
        for i in range(12)
    ]
    asked = pair(99, axes[None, [1]].repeat(2, 0), scene=None)
    best, second = ByNeighbours(known, names, 2, 4, 0.05)(asked)
    assert (best.phrase, second.phrase) == ("blue ball", "rubber")
    assert best.score == pytest.approx(np.log(13 / 4) / np.log(13))
    assert second.score == pytest.approx(0.75 * np.log(13 / 9) / np.log(13))


@given(st.integers(0, 2**31), st.integers(1, 8), st.integers(1, 20))
def test_scores_are_shares_and_ordered(seed: int, k: int, neighbours: int) -> None:
    """Keeps away: an order that differs from the scores, and scores that depend on the sizes."""
    rng = np.random.default_rng(seed)
    vectors, which = planted(rng, 15)
    pairs = [pair(i, vectors[i], f"phrase {which[i]}") for i in range(15)]
    names = sorted({f"phrase {i}" for i in which})
    for one in ByNeighbours(pairs, names, k, neighbours, 0.1), ByText(names, unit(rng.normal(
        size=(len(names), 32))), k):  # fmt: skip
        listed = one(pairs[0])
        scores = [entity.score for entity in listed]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 + 1e-6 for score in scores)
        assert len(listed) == len({entity.phrase for entity in listed})
