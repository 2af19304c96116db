"""A card says of scores what their folder says, and no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_train.sharing import model_card


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"beams": 1}, "On 2 pairs, greedy captions."),
        ({"beams": 5}, "On 2 pairs, captions of 5 beams."),
        ({}, "On 2 pairs."),
    ],
)
def test_a_card_says_how_captions_were_decoded(
    tmp_path: Path, known: dict[str, int], words: str
) -> None:
    """Keeps away: "greedy captions" of scores that do not say how their captions were decoded."""
    scores = {"groups": {"total": {"pairs": 2, "CIDEr": 1.0}}, **known}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    (tmp_path / "items.jsonl").write_text(json.dumps({"scores": {}}) + "\n")
    assert model_card.measured(tmp_path).on == words
