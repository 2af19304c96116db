"""Notes of `cc-prep inspect` on captions that are not split into words as they look."""

from __future__ import annotations

from dataclasses import replace

from cc_prep.inspect import data_warnings
from tests.job_factory import pair


def notes(*captions: str) -> str:
    return "\n".join(data_warnings.of_captions("train", [replace(pair(0), captions=captions)]))


def test_captions_without_blanks() -> None:
    """Keeps away: "characters beyond ASCII" as all that is said of Chinese captions."""
    told = notes("一辆白色的汽车出现在左侧。", "没有变化。")
    assert "train: 2 captions have no blanks between their words" in told
    assert "words=characters" in told
    assert "blanks" not in notes("eine weiße Tür", "집이 사라졌다")


def test_letters_apart_from_their_marks() -> None:
    """Keeps away: two words for one that is typed on a Mac and elsewhere."""
    told = notes("e\u0301toile", "\u00e9toile", "การ")
    assert "train: 1 captions have letters apart from their marks" in told
    assert "captions.normalise: [nfc]" in told
