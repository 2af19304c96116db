"""Words and their numbers, made from the training split only.

Ids 0–7 are marks, as in ProCap's `word2idx` files; captions are lower-cased and cut into words as
NLTK's `word_tokenize` does, except that sentences end at `.`, `!` or `?` before a blank, but for
some abbreviations (NLTK asks a model that must be downloaded).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.errors import UserError

MARKS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]", "[MASK]")
PAD, CLS, SEP, VID, BOS, EOS, UNK, MASK = range(8)
IGNORED = -1  # label of a position that is no word
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ABBREVIATION = re.compile(r"(^|.*\W)(mr|mrs|ms|dr|prof|st|vs|jr|sr|a\.m|p\.m|u\.s)\.", re.DOTALL)


class Vocabulary:
    """Words by id; the marks come first."""

    def __init__(self, words: Sequence[str]) -> None:
        assert tuple(words[: len(MARKS)]) == MARKS, words[: len(MARKS)]
        self.words = list(words)
        self.ids = {word: number for number, word in enumerate(words)}
        assert len(self.ids) == len(self.words), "a word twice"

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def of(cls, captions: Iterable[str], least: int = 1) -> Vocabulary:
        """The words that captions say at least so often, most frequent first, then by alphabet."""
        counts = Counter(word for caption in captions for word in words_of(caption))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        kept = [word for word in ranked if counts[word] >= least and word not in MARKS]
        return cls([*MARKS, *kept])

    @classmethod
    def read(cls, place: str | Path) -> Vocabulary:
        """From our list or from ProCap's `word2idx` JSON. Raises UserError."""
        try:
            found = storage.read_json(str(place))
        except (OSError, ValueError) as error:
            raise UserError(f"{place}: {error}", "Give a vocabulary as JSON") from None
        if isinstance(found, dict):
            found = _in_order(found, str(place))
        if not isinstance(found, list) or tuple(found[: len(MARKS)]) != MARKS:
            raise UserError(f"{place}: does not begin with {', '.join(MARKS)}", "Give a vocabulary")
        if not all(isinstance(word, str) for word in found) or len(set(found)) < len(found):
            raise UserError(f"{place}: a word is twice in it, or is none", "Give a vocabulary")
        return cls(found)

    def to_json(self) -> str:
        """As it is stored: a list of words."""
        return json.dumps(self.words, ensure_ascii=False)

    def encode(self, caption: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of a caption, int64 [length] each.

        Ids: [BOS], at most length − 2 words, [EOS], padding. Labels: the next id at each position,
        −1 where there is none.
        """
        known = [self.ids.get(word, UNK) for word in words_of(caption)[: length - 2]]
        said = [BOS, *known, EOS]
        ids, labels = np.full(length, PAD, np.int64), np.full(length, IGNORED, np.int64)
        ids[: len(said)], labels[: len(said) - 1] = said, said[1:]
        return ids, labels

    def decode(self, ids: Iterable[int]) -> str:
        """The sentence of decoded ids: what stands before [EOS], without marks."""
        said = []
        for number in ids:
            if number == EOS:
                break
            if number > MASK or number == UNK:
                said.append(self.words[number])
        return " ".join(said)


def words_of(caption: str) -> list[str]:
    """The words of a caption, lower-cased."""
    tokenizer = _treebank()
    sentences = [""]
    for part in _SENTENCE_END.split(caption.lower().strip()):
        if _ABBREVIATION.fullmatch(sentences[-1]):
            sentences[-1] += f" {part}"
        else:
            sentences.append(part)
    return [word for sentence in sentences for word in tokenizer.tokenize(sentence)]


def _in_order(ids: dict[str, Any], place: str) -> list[str]:
    if sorted(ids.values(), key=str) != sorted(range(len(ids)), key=str):
        raise UserError(f"{place}: ids are not 0 to {len(ids) - 1}", "Give a word2idx file")
    return sorted(ids, key=lambda word: int(ids[word]))


@lru_cache(maxsize=1)
def _treebank() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer

    return NLTKWordTokenizer()
