"""Words and vocabularies; a run's text codec, found again by its description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_train import text
from cc_train.text import BOS, EOS, IGNORED, MARKS, UNK, Vocabulary, words_of


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
    with pytest.raises(UserError, match=r"vocabulary\.json: not what the run was trained with"):
        text.load(tmp_path, Vocabulary.of(["cube a cube"]).describe())


def test_an_unknown_codec_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown text codec bytes"):
        text.load(tmp_path, {"codec": "bytes"})


class Letters(Vocabulary):
    """A codec that lies in a file of another name, as a tokenizer of transformers does."""

    def describe(self) -> dict[str, Any]:
        return {"codec": "letters", "count": len(self)}

    def files(self) -> dict[str, bytes]:
        return {"letters.json": super().files()[text.VOCABULARY]}


def test_a_system_brings_a_codec_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a system whose tokenizer can be stored only by editing `cc_train/text.py`."""
    monkeypatch.setattr(text, "CODECS", dict(text.CODECS))
    text.register("letters", lambda folder: Letters.read(folder / "letters.json"))
    letters = Letters([*text.MARKS, "a"])
    (tmp_path / "letters.json").write_bytes(letters.files()["letters.json"])
    assert isinstance(text.load(tmp_path, letters.describe()), Letters)
    with pytest.raises(UserError, match=r"letters\.json: not what the run was trained with"):
        text.load(tmp_path, {"codec": "letters", "count": 1})
    with pytest.raises(AssertionError, match="letters"):
        text.register("letters", lambda folder: letters)


def test_vocabulary_of_captions() -> None:
    vocabulary = Vocabulary.of(["A cube moved.", "a ball moved", "the cube"], min_count=2)
    assert vocabulary.words == [*MARKS, "a", "cube", "moved"]
    ids, labels = vocabulary.encode("a ball moved", 6)
    assert ids.tolist() == [BOS, vocabulary.ids["a"], UNK, vocabulary.ids["moved"], EOS, 0]
    assert labels.tolist() == [*ids.tolist()[1:5], IGNORED, IGNORED]
    a, cube, moved = (vocabulary.ids[word] for word in ("a", "cube", "moved"))
    assert vocabulary.decode([a, cube, EOS, moved]) == "a cube"


@given(st.text(max_size=60))
def test_no_text_breaks_the_words(text: str) -> None:
    vocabulary = Vocabulary.of(["a cube"])
    ids, labels = vocabulary.encode(text, 7)
    assert len(ids) == len(labels) == 7
    assert ids[0] == BOS
    assert EOS in ids


def test_sentences_and_abbreviations() -> None:
    assert words_of("It's gone. Mr. X left!") == ["it", "'s", "gone", ".", "mr.", "x", "left", "!"]


_PIECES = ["a", "cube", "left-most", "cannot", "gonna", "wanna-be", "not", ", ", ",", " ", "  "]
_PIECES += [".", "!", "-", "'s", "2", ";", "ü"]


@given(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join))
def test_plain_sentences_are_split_as_nltk_splits_them(sentence: str) -> None:
    """Keeps away: words that depend on whether NLTK was asked."""
    sentence = sentence.strip()
    assert text._words_of_sentence(sentence) == text._treebank().tokenize(sentence)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"[PAD]": 0, "[CLS]": 5}', "ids are not 0 to 1"),
        ('["a", "b"]', "does not begin with"),
        ("no", "Expecting value"),
        (json.dumps([*MARKS, "a", "a"]), "twice"),
    ],
)
def test_foreign_vocabularies(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "words.json"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        Vocabulary.read(path)


def test_word2idx_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "word2idx.json"
    ids = {word: number for number, word in enumerate([*MARKS, "cube", "a"])}
    path.write_text(json.dumps(dict(reversed(ids.items()))))
    assert Vocabulary.read(path).words == [*MARKS, "cube", "a"]


def test_characters_of_scripts_without_blanks_are_words(tmp_path: Path) -> None:
    """Keeps away: a vocabulary with an entry for each Chinese sentence, and captions in which
    blanks stand between characters."""
    captions = ["一辆白色的汽车出现在左侧。", "一辆红色的SUV出现在右侧。"]
    words = text.VOCABULARIES["characters"].of(captions)
    assert {"一", "汽", "suv", "。"} <= set(words.words)
    for name, content in words.files().items():
        (tmp_path / name).write_bytes(content)
    again = text.load(tmp_path, words.describe())
    new = "一辆白色的SUV出现在右侧。"  # of the characters of both
    assert again.decode(again.encode(new, 20)[0][1:].tolist()) == new.lower()
