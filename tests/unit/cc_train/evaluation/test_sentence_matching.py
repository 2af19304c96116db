"""Sentences of captions are matched with those of the annotator who agrees best."""

from __future__ import annotations

import pytest

from cc_train.evaluation.captions import sentence_matching
from cc_train.evaluation.captions.sentence_matching import SentenceScores

TRUE = "a red car is gone. two people walk on the left"


@pytest.mark.parametrize(
    ("said", "precision", "recall"),
    [
        (TRUE, 1.0, 1.0),
        ("Two people walk on the left.\nA red car is gone.", 1.0, 1.0),
        ("a red car is gone", 1.0, 0.5),
        ("a red car is gone. a red car is gone", 0.5, 0.5),
        ("hm", 0.0, 0.0),
        ("", 1.0, 0.0),
    ],
)
def test_each_sentence_is_matched_once(said: str, precision: float, recall: float) -> None:
    """Keeps away: a right sentence said twice that counts twice, and an order that matters."""
    scores = sentence_matching.score({"a": [TRUE]}, {"a": said}).to_json()
    assert (scores["precision"], scores["recall"]) == pytest.approx((precision, recall), abs=0.13)
    if precision == recall == 1:
        assert scores["F1"] == pytest.approx(1)


def test_the_best_annotator_counts() -> None:
    """Keeps away: a recall over the sentences of all annotators, who say the same otherwise."""
    references = {"a": ["the parking lot is empty now", TRUE, "nothing"], "b": ["a van left"]}
    scores = sentence_matching.score(references, {"a": TRUE, "b": "a van left"})
    assert scores == SentenceScores(pytest.approx(3.0), 3, 3)  # type: ignore[arg-type]
    assert "| all | 100.0 | 100.0 | 100.0 | 3 | 3 |" in scores.table()
