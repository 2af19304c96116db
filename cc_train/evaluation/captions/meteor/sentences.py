"""What METEOR's modules know of the words of some captions, so that two of them can be aligned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cc_train.evaluation.captions.meteor import paraphrases
from cc_train.evaluation.captions.meteor.stemming import stem
from cc_train.evaluation.captions.meteor.tables import Tables

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)  # the modules, in their order

Modules = tuple[int, ...]


@dataclass
class Sentence:
    """A caption.

    Attributes:
        words: Numbers of its words.
        function: For each word, 1 if it is a function word.
        phrases: Start, length and number of each phrase that has paraphrases in the captions, by
            start, then by length.
        starts: Where each phrase of the table occurs, by its number.
    """

    words: list[int]
    function: list[int]
    phrases: list[tuple[int, int, int]] = field(default_factory=list)
    starts: dict[int, list[int]] = field(default_factory=dict)


class Vocabulary:
    """The words and phrases of captions.

    Args:
        captions: Their words; none twice.
        tables: See there.

    Attributes:
        sentences: By the words of the caption.
        lengths: Words of each phrase, by its number.
        paraphrases: Of each phrase by its number, with their places in the table.
    """

    def __init__(self, captions: Iterable[tuple[str, ...]], tables: Tables) -> None:
        numbers: dict[str, int] = {}
        self.sentences = {
            caption: Sentence([numbers.setdefault(word, len(numbers)) for word in caption], [])
            for caption in captions
        }
        words = list(numbers)
        is_function = [int(word in tables.function_words) for word in words]
        for sentence in self.sentences.values():
            sentence.function = [is_function[word] for word in sentence.words]
        self._keys = [_java_hash(word) for word in words]
        self._stems = [_java_hash(stem(word)) for word in words]
        self._meanings = [tables.meanings(word) for word in words]
        self._modules: list[dict[int, Modules]] = [{} for _ in words]
        self.lengths: dict[int, int] = {}
        self.paraphrases: dict[int, dict[int, list[int]]] = {}
        self._find_phrases(words)

    def modules(self, word: int, others: Sequence[int]) -> list[Modules]:
        """Which modules match a word with each of others: exact, stem and synonym."""
        known = self._modules[word]
        matching = [known[other] for other in others if other in known]
        if len(matching) == len(others):
            return matching
        for other in others:
            if other not in known:
                known[other] = self._matching(word, other)
        return [known[other] for other in others]

    def equal(self, first: Sentence, second: Sentence) -> bool:
        """Whether all words are the same, as the program sees it."""
        return first.words == second.words or [self._keys[word] for word in first.words] == [
            self._keys[word] for word in second.words
        ]

    def _matching(self, word: int, other: int) -> Modules:
        if self._keys[word] == self._keys[other]:
            return (EXACT,)
        stems = (STEM,) if self._stems[word] == self._stems[other] else ()
        synonyms = not self._meanings[word].isdisjoint(self._meanings[other])
        return (*stems, SYNONYM) if synonyms else stems

    def _find_phrases(self, words: Sequence[str]) -> None:
        """Puts the phrases that have paraphrases among the captions into the sentences."""
        sentences = list(self.sentences.values())
        phrases, found = _occurrences(sentences, paraphrases.word_numbers(words))
        for number, listed in paraphrases.read().among(phrases).items():
            ranks = self.paraphrases.setdefault(number, {})
            for rank, other in enumerate(listed):
                ranks.setdefault(other, []).append(rank)
        used = np.zeros(len(phrases), bool)
        for number, ranks in self.paraphrases.items():
            used[[number, *ranks]] = True
        for owner, start, length, number in found[used[found[:, 3]]].tolist():
            sentence = sentences[owner]
            self.lengths[number] = length
            sentence.starts.setdefault(number, []).append(start)
            if number in self.paraphrases:
                sentence.phrases.append((start, length, number))


def _occurrences(
    sentences: Sequence[Sentence], of_words: paraphrases.Numbers
) -> tuple[paraphrases.Numbers, NDArray[np.intp]]:
    """All phrases of sentences, and where they occur.

    Args:
        of_words: The number of each word, as the table of paraphrases has it.

    Returns:
        The numbers of the phrases, sorted; and for each occurrence its sentence, its start there,
        its length, and the place of its phrase among the numbers, in this order.
    """
    sizes = np.array([len(sentence.words) for sentence in sentences], np.intp)
    owners = np.repeat(np.arange(len(sentences)), sizes)
    starts = np.arange(len(owners)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    flat = of_words[[word for sentence in sentences for word in sentence.words]]
    numbers, found = [np.zeros(0, np.uint64)], [np.zeros((0, 3), np.intp)]
    for length in range(1, min(paraphrases.LONGEST, max(sizes, default=0)) + 1):
        inside = np.flatnonzero(owners[length - 1 :] == owners[: len(owners) - length + 1])
        numbers.append(paraphrases.phrase_numbers(flat, length)[inside])
        lengths = np.full(len(inside), length)
        found.append(np.stack([owners[inside], starts[inside], lengths], axis=1))
    phrases, places = np.unique(np.concatenate(numbers), return_inverse=True)
    rows = np.column_stack([np.concatenate(found), places])
    return phrases, rows[np.lexsort((rows[:, 2], rows[:, 1], rows[:, 0]))]


def _java_hash(word: str) -> int:
    """Java's hash of a text, by which the program compares words: some that differ are the same."""
    value = 0
    units = word.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + low + 256 * high) & 0xFFFFFFFF
    return value
