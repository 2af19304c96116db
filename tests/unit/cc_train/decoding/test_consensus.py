"""Consensus decoding: the caption of the largest expected CIDEr."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_train.captioner import Caption, Inputs
from cc_train.decoding import consensus
from cc_train.evaluation.captions import cider


def of_beams(*beams: tuple[str, float]) -> Caption:
    return Caption(beams[0][0], beams, mask=np.ones((2, 2), np.uint8), score=beams[0][1])


def test_sentences_that_say_the_same_win_over_the_likeliest() -> None:
    """Keeps away: the likeliest sentence, whatever the others say."""
    chances = {
        "the red cube moved": 0.4,
        "a blue ball vanished": 0.32,
        "one blue ball vanished": 0.28,
    }
    caption = of_beams(*((text, math.log(chance)) for text, chance in chances.items()))
    chosen = consensus.agreed(caption)
    assert chosen.text == "a blue ball vanished"
    assert chosen.score == math.log(0.32)
    assert [text for text, _ in chosen.beams][-1] == "the red cube moved"
    assert chosen.mask is caption.mask
    # The same sentences where the first is far likelier.
    sure = of_beams(*((text, 8 * math.log(chance)) for text, chance in chances.items()))
    assert consensus.agreed(sure).text == "the red cube moved"


def test_the_largest_expected_cider_of_all() -> None:
    """Against CIDEr itself, in a corpus where every n-gram is as rare as every other."""
    texts = ["the red cube moved away", "the red cube has moved", "a cube moved", "nothing changed",
             "the red red cube moved"]  # fmt: skip
    chances = np.array([0.3, 0.25, 0.2, 0.15, 0.1])
    rest = {f"other {n}": [f"w{n}a w{n}b w{n}c w{n}d"] for n in range(9)}
    candidates = dict.fromkeys(rest, "x")

    def cider_of(text: str, reference: str) -> float:
        own = {"own": [reference], **rest}
        return cider.cider(own, {"own": text, **candidates})[1]["own"]

    expected = [
        sum(chance * cider_of(text, other) for other, chance in zip(texts, chances, strict=True))
        for text in texts
    ]
    found = cider.agreement([text.split() for text in texts]) @ chances
    assert found == pytest.approx(expected)
    caption = of_beams(*zip(texts, np.log(chances).tolist(), strict=True))
    assert consensus.agreed(caption).text == texts[int(np.argmax(expected))]


def test_characters_of_languages_without_blanks_are_compared() -> None:
    """Keeps away: sentences that are one word each, so that none agrees with another."""
    caption = of_beams(("红车不见了", -0.9), ("一棵树出现了", -1.0), ("一棵大树出现了", -1.1))
    assert consensus.agreed(caption).text == "一棵树出现了"


class OneSentence:
    """A captioner without beam search."""

    inputs, device = Inputs((8, 8)), torch.device("cpu")

    def caption(self, before_after: Any, beams: int = 1) -> list[Caption]:
        return [Caption("nothing changed")] * len(before_after)


def test_nothing_to_choose_among_is_said() -> None:
    """Keeps away: a consensus of one, in silence."""
    with pytest.raises(UserError, match="this captioner gives one"):
        consensus.Consensus(OneSentence()).caption(torch.zeros(1), 5)
    with pytest.raises(UserError, match="without --beams"):
        consensus.require_beams(1)
