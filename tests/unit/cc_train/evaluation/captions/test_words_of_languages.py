"""Tokens of captions in other languages than English: those of the Java tokenizer."""

from __future__ import annotations

import pytest

from cc_train.evaluation.captions import ptb


@pytest.mark.parametrize(
    "caption",
    [
        "लड़का हिन्दी बोलता है",
        "عَرَبِيَّة سيارة",
        "עִבְרִית מכונית",
        "การเปลี่ยนแปลง",
        "cafe\u0301 tie\u0302\u0301ng vie\u0323\u0302t",
        "ёлка ёлки",
        "집이 사라졌다",
    ],
)
def test_a_mark_does_not_end_a_word(caption: str) -> None:
    """Keeps away: a word of Hindi, or of Arabic with its vowels, in single letters and marks."""
    assert ptb.tokenize(caption) == caption
