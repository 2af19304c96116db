"""Captions to ids and back: the protocol of a text codec, and our word vocabulary.

A vocabulary is made from the training split only. Its ids 0–7 are marks, as in ProCap's `word2idx`
files; captions are lower-cased and split into words as NLTK's `word_tokenize` does, except that
sentences end at `.`, `!` or `?` before a blank, but for some abbreviations (NLTK asks a model that
must be downloaded).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cc_prep import storage, unspaced
from cc_prep.errors import UserError
from cc_prep.unspaced import Words

MARKS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]")
PAD, CLS, SEP, VID, BOS, EOS, UNK, MASK = range(8)
IGNORED = -1  # label of a position that is no word
VOCABULARY = "vocabulary.json"
WORDS = "words"  # the setting that chooses a vocabulary of `VOCABULARIES`
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ABBREVIATION = re.compile(r"(^|.*\W)(mr|mrs|ms|dr|prof|st|vs|jr|sr|a\.m|p\.m|u\.s)\.", re.DOTALL)
# What most captions are: words, some with a hyphen, commas between them, and a mark at the end.
_PLAIN = re.compile(r"[a-z]+(-[a-z]+)*(,? +[a-z]+(-[a-z]+)*)*[.!?]?")
_WORD_OR_MARK = re.compile(r"[a-z-]+|[,.!?]")
# Words without an apostrophe that the Treebank splits all the same.
_CONTRACTION = re.compile(r"\b(cannot|gimme|gonna|gotta|lemme|wanna)\b")


@dataclass(frozen=True)
class Marks:
    """The ids that decoding has to know: the begin mark, the end mark and padding.

    Attributes:
        never: Ids that are never chosen, such as [UNK].
    """

    begin: int
    end: int
    pad: int
    never: tuple[int, ...] = ()


WORD_MARKS = Marks(BOS, EOS, PAD, (UNK,))


class TextCodec(Protocol):
    """Captions to ids and back. `Vocabulary` is one; a tokenizer of transformers can be another."""

    @property
    def marks(self) -> Marks: ...

    def __len__(self) -> int:
        """How many ids there are."""
        ...

    def encode(self, caption: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of a caption, int64 [length] each.

        Ids: the begin mark, at most length − 2 tokens, the end mark, padding. Labels: the next id
        at each position, `IGNORED` where there is none.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids up to the first end mark, without marks."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a run's settings hold of it, as JSON, by which `load` recognises it.

        `codec` is its name in `CODECS`; a digest tells it from others of that name, and `count`,
        where it is given, is the number of ids that a report shows.
        """
        ...

    def files(self) -> dict[str, bytes]:
        """The content by name of the files from which `load` reads it again."""
        ...


def ids_of(words: Sequence[str], marks: Sequence[str]) -> dict[str, int]:
    """The id of each word of a list that begins with some marks and has no word twice."""
    assert tuple(words[: len(marks)]) == tuple(marks), words[: len(marks)]
    ids = {word: number for number, word in enumerate(words)}
    assert len(ids) == len(words), "a word twice"
    return ids


def padded(tokens: Sequence[int], marks: Marks, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels of the tokens of a caption, as `TextCodec.encode` gives them."""
    row = [marks.begin, *tokens[: length - 2], marks.end]
    ids, labels = np.full(length, marks.pad, np.int64), np.full(length, IGNORED, np.int64)
    ids[: len(row)], labels[: len(row) - 1] = row, row[1:]
    return ids, labels


def described(codec: str, count: int, content: bytes) -> dict[str, Any]:
    """What `TextCodec.describe` gives of a codec with one file."""
    return {"codec": codec, "count": count, "sha256": hashlib.sha256(content).hexdigest()}


class Vocabulary:
    """A word-level `TextCodec`.

    Args:
        words: By id; the first are `MARKS`, and no word is twice in it.
    """

    codec = "words"
    marks = WORD_MARKS

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.ids = list(words), ids_of(words, MARKS)

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def of(cls, captions: Iterable[str], min_count: int = 1) -> Vocabulary:
        """A vocabulary of the words that occur at least `min_count` times in some captions.

        The most frequent ones come first, those of the same frequency in alphabetical order.
        """
        counts = Counter(word for caption in captions for word in cls.split(caption))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        frequent = [w for w in ranked if counts[w] >= min_count and w not in MARKS]
        return cls([*MARKS, *frequent])

    @classmethod
    def read(cls, path: str | Path) -> Vocabulary:
        """A vocabulary from our JSON list of words, or from ProCap's `word2idx` JSON object.

        Raises:
            UserError: For a file that is neither.
        """
        try:
            content = storage.read_json(str(path))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {error}", "Give a vocabulary as JSON") from None
        words = _in_order(content, str(path)) if isinstance(content, dict) else content
        if not isinstance(words, list) or tuple(words[: len(MARKS)]) != MARKS:
            raise UserError(f"{path}: does not begin with {', '.join(MARKS)}", "Give a vocabulary")
        if not all(isinstance(word, str) for word in words) or len(set(words)) < len(words):
            raise UserError(f"{path}: a word is twice in it, or is none", "Give a vocabulary")
        return cls(words)

    def describe(self) -> dict[str, Any]:
        """Name of the codec, number of words, SHA-256 of the file."""
        return described(self.codec, len(self), self.files()[VOCABULARY])

    def files(self) -> dict[str, bytes]:
        """`vocabulary.json`: a list of words."""
        return {VOCABULARY: json.dumps(self.words, ensure_ascii=False).encode()}

    def encode(self, caption: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of a caption, int64 [length] each.

        Ids: [BOS], at most length − 2 words, [EOS], padding. Labels: the next id at each position,
        −1 where there is none.
        """
        return padded([self.ids.get(word, UNK) for word in self.split(caption)], self.marks, length)

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of ids up to [EOS]; of the marks only [UNK] is shown."""
        words = []
        for number in ids:
            if number == EOS:
                break
            if number > MASK or number == UNK:
                words.append(self.words[number])
        return self.join(words)

    @staticmethod
    def split(caption: str) -> list[str]:
        """The words of a caption."""
        return words_of(caption)

    @staticmethod
    def join(words: Sequence[str]) -> str:
        """The sentence of some words."""
        return " ".join(words)


class CharacterVocabulary(Vocabulary):
    """A `Vocabulary` for scripts without blanks, in which each character is a word.

    Words of other scripts stay words. A sentence has blanks between two of these alone.
    """

    codec = "characters"

    @staticmethod
    def split(caption: str) -> list[str]:
        """The characters and the words of a caption."""
        return unspaced.tokens_of(caption, words_of)

    @staticmethod
    def join(words: Sequence[str]) -> str:
        """The sentence of some characters and words."""
        return unspaced.joined(words)


VOCABULARIES: Mapping[Words, type[Vocabulary]] = {
    "treebank": Vocabulary,
    "characters": CharacterVocabulary,
}
CODECS: dict[str, Callable[[Path], TextCodec]] = {
    kind.codec: lambda folder, kind=kind: kind.read(folder / VOCABULARY)  # type: ignore[misc]
    for kind in VOCABULARIES.values()
}


def register(name: str, read: Callable[[Path], TextCodec]) -> None:
    """Adds a text codec, whose `describe` gives this name as `codec`.

    Args:
        read: A function from the folder of a run, which has the codec's `files`, to the codec. A
            system with a codec of its own registers it in its recipe.
    """
    assert name not in CODECS, name
    CODECS[name] = read


def load(folder: Path, description: Mapping[str, Any]) -> TextCodec:
    """The codec of a run's folder, as `describe` described it.

    Raises:
        UserError: If the codec is not known, or the folder holds another one.
    """
    read = CODECS.get(str(description.get("codec")))
    if read is None:
        raise UserError(
            f"{folder}: unknown text codec {description.get('codec')}",
            f"Known: {', '.join(CODECS)}",
        )
    text = read(folder)
    if text.describe() != dict(description):
        raise UserError(
            f"{folder}: {', '.join(text.files())}: not what the run was trained with",
            "Restore the file, or train again",
        )
    return text


def words_of_scores(words: object) -> Words:
    """How the captions of a system are split for their scores, by its setting `words`.

    Ways of splitting that only trainings have, such as SCORER's, are scored as the default is.
    """
    return "characters" if words == "characters" else "treebank"


def words_of(caption: str) -> list[str]:
    """The words and punctuation marks of a caption, lower-cased, as NLTK's Treebank splits them."""
    sentences = [""]
    for part in _SENTENCE_END.split(caption.lower().strip()):
        if _ABBREVIATION.fullmatch(sentences[-1]):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    return [word for sentence in sentences if sentence for word in _words_of_sentence(sentence)]


def _words_of_sentence(sentence: str) -> list[str]:
    # Importing NLTK takes two seconds, so only a sentence that needs its rules has it imported.
    if _PLAIN.fullmatch(sentence) and not _CONTRACTION.search(sentence):
        return _WORD_OR_MARK.findall(sentence)
    words: list[str] = _treebank().tokenize(sentence)
    return words


def _in_order(ids: dict[str, Any], path: str) -> list[str]:
    if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise UserError(f"{path}: ids are not 0 to {len(ids) - 1}", "Give a word2idx file")
    return sorted(ids, key=lambda word: int(ids[word]))


@lru_cache(maxsize=1)
def _treebank() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()
