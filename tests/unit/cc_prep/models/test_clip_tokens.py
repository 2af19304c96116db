"""What the golden captions do not show: captions that no tokenizer was made for."""

from __future__ import annotations

from cc_prep.models import clip
from cc_prep.models.clip import END_TOKEN, MAX_CHARACTERS, PAD_TOKEN, START_TOKEN


def test_an_endless_word_does_not_stop_a_job() -> None:
    """Keeps away: hours for a caption that is a damaged file; a word's time grows with its square.

    Of a million letters only the first MAX_CHARACTERS are looked at.
    """
    [ids] = clip.tokenize(["ab" * 500_000]).tolist()
    [cut] = clip.tokenize([("ab" * 500_000)[:MAX_CHARACTERS]]).tolist()
    assert ids == cut
    assert ids[0] == START_TOKEN
    assert ids[-1] == END_TOKEN


def test_an_empty_caption_is_two_marks() -> None:
    assert clip.tokenize([""], 4).tolist() == [[START_TOKEN, END_TOKEN, PAD_TOKEN, PAD_TOKEN]]
