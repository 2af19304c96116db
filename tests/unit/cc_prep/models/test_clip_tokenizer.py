"""What the golden captions do not show: captions that no tokenizer was made for."""

from __future__ import annotations

from cc_prep.models import clip_tokenizer
from cc_prep.models.clip_tokenizer import END, LONGEST, PAD, START


def test_an_endless_word_does_not_stop_a_job() -> None:
    """Keeps away: hours for a caption that is a damaged file; a word's time grows with its square.

    Of a million letters only the first LONGEST are looked at.
    """
    [ids] = clip_tokenizer.batch(["ab" * 500_000]).tolist()
    [cut] = clip_tokenizer.batch([("ab" * 500_000)[:LONGEST]]).tolist()
    assert ids == cut
    assert ids[0] == START
    assert ids[-1] == END


def test_an_empty_caption_is_two_marks() -> None:
    assert clip_tokenizer.batch([""], 4).tolist() == [[START, END, PAD, PAD]]
