"""METEOR in Python beside its Java program, where there is Java."""

from __future__ import annotations

import random
import shutil

import pytest
from pycocoevalcap.meteor.meteor import Meteor

from cc_prep.synth import grammar
from cc_train.evaluation.captions.meteor import meteor, tables

CAPTIONS = 400
PHRASES = ("in front of", "next to", "no longer", "has been", "is missing", "a number of", "'s")


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java to compare with")
def test_the_program_answers_the_same() -> None:
    """Captions of words that are often repeated, and of words of one meaning."""
    rng = random.Random(0)
    groups: dict[str, list[str]] = {}
    synsets = tables.read().synsets
    for word in sorted(synsets)[:: len(synsets) // 6000]:
        for number in synsets[word].split():
            groups.setdefault(number, []).append(word.replace("_", " "))
    alike = [words for words in groups.values() if len(words) > 1]
    plain = [*" ".join(grammar.NO_CHANGE_SENTENCES).split(), "of", "and", "box", "boxes", "."]

    def words() -> list[str]:
        of_one_meaning = [word for group in rng.sample(alike, 2) for word in group]
        pool = [*rng.sample(plain, 5), *of_one_meaning, rng.choice(PHRASES)]
        return rng.choices(pool, k=rng.randint(1, 14))

    def caption(pool: list[str]) -> str:
        return " ".join(word if rng.random() < 0.8 else rng.choice(pool) for word in pool)

    pools = {str(number): words() for number in range(CAPTIONS)}
    candidates = {id: caption(pool) for id, pool in pools.items()}
    references = {id: [caption(pool[::-1]), caption(pool)] for id, pool in pools.items()}
    total, each = Meteor().compute_score(references, {id: [c] for id, c in candidates.items()})
    totals, scores = meteor(references, candidates, [set(candidates)])
    assert scores == pytest.approx(dict(zip(candidates, each, strict=True)), abs=1e-9)
    assert totals == pytest.approx([total], abs=1e-9)
