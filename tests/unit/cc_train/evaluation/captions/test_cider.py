"""CIDEr in sparse matrices against its formula in plain loops; the official one is in parity."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from cc_train.evaluation.captions.cider import agreement, cider

WORDS = [
    "the",
    "a",
    "cube",
    "ball",
    "moved",
    "red",
    "blue",
    "left",
    "of",
    "it",
    "is",
    "there",
    "no",
    "change",
]


def grams(caption: str, n: int) -> Counter[tuple[str, ...]]:
    words = caption.split()
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def by_formula(references: dict[str, list[str]], candidates: dict[str, str]) -> dict[str, float]:
    """Vedantam et al., 2015, equations 1 to 4, with CIDEr-D's clipping and length penalty."""
    scores = {}
    for id, captions in references.items():
        total = 0.0
        for reference in captions:
            penalty = len(candidates[id].split()) - 1, len(reference.split()) - 1
            length = max(0, penalty[0]) - max(0, penalty[1])
            for n in range(1, 5):
                document_counts = Counter[tuple[str, ...]]()
                for others in references.values():
                    document_counts.update({gram for other in others for gram in grams(other, n)})

                def weighed(
                    caption: str, n: int = n, document_counts: Counter = document_counts
                ) -> dict:
                    return {
                        gram: count
                        * (math.log(len(references)) - math.log(max(1, document_counts[gram])))
                        for gram, count in grams(caption, n).items()
                    }

                one, other = weighed(candidates[id]), weighed(reference)
                norms = [math.sqrt(sum(v * v for v in part.values())) for part in (one, other)]
                shared = sum(min(one.get(gram, 0.0), v) * v for gram, v in other.items())
                if all(norms):
                    similarity = shared / norms[0] / norms[1]
                    total += similarity * math.exp(-(length**2) / (2 * 6.0**2)) / 4
        scores[id] = 10 * total / len(captions)
    return scores


def drawn(rng: np.random.Generator, most: int) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(0, most)))


@pytest.mark.parametrize("seed", range(5))
def test_the_formula(seed: int) -> None:
    """Keeps away: a weight, a length or a mean that is off in a case which no vector covers."""
    rng = np.random.default_rng(seed)
    ids = [str(i) for i in range(6)]
    references = {id: [drawn(rng, 9) for _ in range(rng.integers(1, 4))] for id in ids}
    # Some candidates share most words with a reference, repeat one, or are empty.
    candidates = {id: f"{references[id][0]} {drawn(rng, 4)}".strip() for id in ids}
    candidates["1"], candidates["2"] = "", "cube cube cube"
    mean, each = cider(references, candidates)
    assert each == pytest.approx(by_formula(references, candidates), abs=1e-9)
    assert mean == pytest.approx(np.mean(list(each.values())))


@pytest.mark.parametrize("seed", range(3))
def test_the_agreement_of_captions_is_the_formula_without_a_corpus(seed: int) -> None:
    rng = np.random.default_rng(seed)
    captions = ["", "cube", "cube cube", *(drawn(rng, 9) for _ in range(5))]
    expected = np.zeros((len(captions), len(captions)))
    for i, one in enumerate(captions):
        for j, other in enumerate(captions):
            lengths = [max(0, len(caption.split()) - 1) for caption in (one, other)]
            for n in range(1, 5):
                ours, theirs = grams(one, n), grams(other, n)
                shared = sum(min(ours[gram], count) * count for gram, count in theirs.items())
                norms = [math.sqrt(sum(v * v for v in part.values())) for part in (ours, theirs)]
                expected[i, j] += 10 * shared / norms[0] / norms[1] / 4 if all(norms) else 0
            expected[i, j] *= math.exp(-((lengths[0] - lengths[1]) ** 2) / (2 * 6.0**2))
    assert np.allclose(agreement([caption.split() for caption in captions]), expected)


def test_the_same_sentence_is_ten() -> None:
    references = {"1": ["the red cube has moved away"], "2": ["no change was made there"]}
    _, each = cider(references, {"1": references["1"][0], "2": "it is blue"})
    assert each == pytest.approx({"1": 10, "2": 0})
