"""METEOR in Python beside what its Java program answered; benchmarks/bench_meteor.py runs that."""

from __future__ import annotations

import json

import pytest

from cc_train.evaluation.captions.meteor import meteor
from tests.conftest import ROOT


def test_what_the_program_answers() -> None:
    """Captions of words that are often repeated, and of words of one meaning."""
    golden = json.loads((ROOT / "tests/golden/meteor/by_chance.json").read_text("utf-8"))
    items = {str(number): item for number, item in enumerate(golden["items"])}
    candidates = {id: item["candidate"] for id, item in items.items()}
    references = {id: item["references"] for id, item in items.items()}
    totals, scores = meteor(references, candidates, [set(candidates)])
    assert len(items) == 400
    assert scores == pytest.approx({id: item["score"] for id, item in items.items()}, abs=1e-9)
    assert totals == pytest.approx([golden["total"]], abs=1e-9)
