"""A run's text codec: found again by its description, and not taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train import text
from cc_train.text import Vocabulary


def test_it_is_found_again(tmp_path: Path) -> None:
    words = Vocabulary.of(["a cube", "a ball ü"])
    for name, content in words.files().items():
        (tmp_path / name).write_bytes(content)
    again = text.load(tmp_path, words.describe())
    assert again.decode(again.encode("a ball ü", 9)[0][1:].tolist()) == "a ball ü"
    assert again.describe() == words.describe()


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """Keeps away: weights that speak with words in another order."""
    for name, content in Vocabulary.of(["a cube"]).files().items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match="not the vocabulary that the run was trained with"):
        text.load(tmp_path, Vocabulary.of(["cube a cube"]).describe())


def test_an_unknown_codec_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown text codec bytes"):
        text.load(tmp_path, {"codec": "bytes"})
