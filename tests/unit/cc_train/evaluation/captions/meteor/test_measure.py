"""METEOR's figures are those of its Java program; tests/golden/meteor holds what that answered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cc_train.evaluation.captions.meteor import meteor
from cc_train.evaluation.captions.meteor.aligning import _java_hash
from cc_train.evaluation.captions.meteor.words import stem
from tests.conftest import ROOT

GOLDEN = ROOT / "tests/golden/meteor"


def read(name: str) -> Any:
    return json.loads((GOLDEN / name).read_text("utf-8"))


def score(caption: str, *references: str) -> float:
    return meteor({"a": list(references)}, {"a": caption}, [["a"]])[0][0]


def test_stored_answers_of_the_program() -> None:
    """Repeated words, tables' words, punctuation, Unicode, empty texts; each, and all together.

    Keeps away: also a search without a beam, which would not end on 80 equal words.
    """
    cases = read("cases.json")
    ids = [str(number) for number in range(len(cases["items"]))]
    candidates = {id: item["candidate"] for id, item in zip(ids, cases["items"], strict=True)}
    references = {id: item["references"] for id, item in zip(ids, cases["items"], strict=True)}
    totals, scores = meteor(references, candidates, [ids, ids[: len(ids) // 2], []])
    wrong = {
        ascii(item): scores[id]
        for id, item in zip(ids, cases["items"], strict=True)
        if scores[id] != pytest.approx(item["score"], abs=1e-9)
    }
    assert wrong == {}
    assert totals == pytest.approx([cases["total"], cases["first_half"], 0], abs=1e-9)


def test_stems() -> None:
    """Keeps away: the rules of a later Snowball, or of Porter's first stemmer."""
    stems = read("stems.json")
    assert {word: stem(word) for word in stems} == stems


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("running dog", "its stem"),
        ("dog runs", "its stem"),
        ("hound run", "a synonym"),
        ("run canine", "a synonym"),
    ],
)
def test_each_module_matches(reference: str, why: str) -> None:
    """Keeps away: a module that matches nothing, in texts that the others match anyway."""
    assert score(f"the dog run {'x' * 3}", f"the {reference} yyy") > score(
        f"the dog run {'x' * 3}", "the zzzz zzz yyy"
    ), why


def test_words_of_equal_hashes_are_equal() -> None:
    """As in the program, which compares Java's hashes; keeps away: a difference in one of 10^9."""
    first, second = read("cases.json")["equal_hashes"]
    assert first != second
    assert _java_hash(first) == _java_hash(second)
    assert score(first, second) == 1


@pytest.mark.parametrize(
    ("word", "value"),
    [("", 0), ("a", 97), ("变化", 31 * 0x53D8 + 0x5316), ("polygenelubricants", 2**31)],
)
def test_hashes_are_those_of_java(word: str, value: int) -> None:
    assert _java_hash(word) == value
