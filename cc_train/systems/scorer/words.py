"""The words of SCORER's public code: a text codec with its marks, its order and its way to split.

Ids: `<NULL>` 0 (padding), `<UNK>` 1, `<START>` 2, `<END>` 3; then all words in the order of their
characters' numbers. `cc_prep.formats.scorer` splits captions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats.scorer import END, MARKS, NULL, START, UNK, VOCABULARY, vocabulary, words_of
from cc_train.text import Marks, Vocabulary, described, ids_of, padded

CODEC = "scorer-words"
FILE = VOCABULARY


class ScorerWords(Vocabulary):
    """The words of captions, as SCORER's public code has them.

    Args:
        words: By id; the first are SCORER's `MARKS`, and no word is twice in it.
    """

    codec = CODEC
    marks = Marks(START, END, NULL, (UNK,))

    def __init__(self, words: Sequence[str]) -> None:
        self.words, self.ids = list(words), ids_of(words, MARKS)

    @classmethod
    def of(cls, captions: Iterable[str], min_count: int = 1) -> ScorerWords:
        """The words that occur at least `min_count` times in some captions."""
        return cls(vocabulary(captions, min_count))

    @classmethod
    def read(cls, path: str | Path) -> ScorerWords:
        """The public code's `vocab.json`: {word: id}.

        Raises:
            UserError: For another file.
        """
        remedy = "Give SCORER's vocab.json"
        try:
            content = storage.read_json(str(path))
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: {error}", remedy) from None
        if not isinstance(content, dict) or not all(type(one) is int for one in content.values()):
            raise UserError(f"{path}: no object of words and ids", remedy)
        if sorted(content.values()) != list(range(len(content))):
            raise UserError(f"{path}: ids are not 0 to {len(content) - 1}", remedy)
        words = sorted(content, key=content.__getitem__)
        if tuple(words[: len(MARKS)]) != MARKS:
            raise UserError(f"{path}: does not begin with {', '.join(MARKS)}", remedy)
        return cls(words)

    def describe(self) -> dict[str, Any]:
        """Name of the codec, number of words, SHA-256 of the file."""
        return described(self.codec, len(self), self.files()[FILE])

    def files(self) -> dict[str, bytes]:
        """`vocab.json`, as the public code writes it."""
        return {FILE: json.dumps(self.ids, ensure_ascii=False).encode()}

    def encode(self, caption: str, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and labels of a caption, int64 [length] each; see `TextCodec`.

        An unknown word becomes <UNK>; the public code ends with an error.
        """
        return padded([self.ids.get(word, UNK) for word in words_of(caption)], self.marks, length)

    def decode(self, ids: Iterable[int]) -> str:
        """The words of ids up to the first <NULL> or <END>, joined by blanks."""
        words = []
        for number in ids:
            if number in (NULL, END):
                break
            if number != START:
                words.append(self.words[number])
        return " ".join(words)
