"""Noun phrases of captions, by the real pipeline from its wheel, fetched once a machine."""

from __future__ import annotations

import sys

import pytest

from cc_prep.errors import UserError
from cc_prep.steps.entities.phrases import NounPhrases, vocabulary


@pytest.fixture(scope="module")
def nouns() -> NounPhrases:
    return NounPhrases()


CAPTIONS = {
    "The small red metal cube that is behind the blue sphere turned green.": [
        "small red metal cube",
        "blue sphere",
    ],
    "a person in a white shirt is walking": ["person", "white shirt"],
    "the two cars on the right side are no longer there": ["cars"],
    "remove the woman from the background": ["woman"],
    "many houses were built along the road": ["houses", "road"],
    "the scene is the same as before": [],
    "there is no difference": [],
    "nothing changed": [],
}


@pytest.mark.parametrize("caption", CAPTIONS)
def test_phrases(nouns: NounPhrases, caption: str) -> None:
    """Keeps away: entities such as `the scene`, `two cars` or `left side`."""
    assert nouns([caption]) == [CAPTIONS[caption]]


def test_captions_keep_their_order(nouns: NounPhrases) -> None:
    """Keeps away: phrases of one caption under another, and a caption without phrases left out."""
    assert nouns(list(CAPTIONS)) == list(CAPTIONS.values())
    assert nouns([]) == []
    assert nouns(["", "   "]) == [[], []]


def test_a_phrase_counts_once_a_pair() -> None:
    """Keeps away: a pair whose captions all name its object and lift it over `min_count`."""
    phrases = [["cube", "cube"], ["cube", "ball"], ["ball"], ["car", "car"]]
    assert vocabulary(phrases, 2) == {"ball": 2, "cube": 2}
    assert vocabulary(phrases, 1) == {"ball": 2, "car": 1, "cube": 2}


def test_without_spacy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: an ImportError for an extra that was not installed."""
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"pip install '\.\[mllm\]'"):
        NounPhrases()
