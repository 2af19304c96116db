"""METEOR's alignment of two captions: which words match, in the fewest chunks.

A vocabulary knows which words of some captions match by which of METEOR's modules. A beam of 40
partial alignments passes over the words of the reference. The choice among equals follows the
program: its order of matches, its stable sort, and the distance of a match, which it adds to the
alignment that does without the match and to those that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cc_train.evaluation.captions.meteor import paraphrases
from cc_train.evaluation.captions.meteor.tables import Tables
from cc_train.evaluation.captions.meteor.words import stem

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)  # the modules, in their order

Modules = tuple[int, ...]
BEAM = 40
# The order of alignments as one number: more matches, then fewer chunks, then less distance.
CHUNK = 1 << 40
MATCH = 1 << 60

Chain = tuple["Match", "Chain"] | None
State = tuple[int, int, int, int, Chain]  # order, used words of both, end of the last match, chain


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


class Match(NamedTuple):
    """A match of words of the reference with words of the candidate.

    Attributes:
        start: Its first word in the reference.
        other: Its first word in the candidate.
        covered: Its words in the reference as bits.
        other_covered: Its words in the candidate as bits.
        distance: Between both starts.
        gain: What it adds to the order of an alignment: half matches are not counted.
    """

    module: int
    start: int
    length: int
    other: int
    other_length: int
    covered: int
    other_covered: int
    distance: int
    gain: int


def align(candidate: Sentence, reference: Sentence, vocabulary: Vocabulary) -> list[Match]:
    """The matches of the best alignment, by their place in the reference."""
    found = _matches(candidate, reference, vocabulary)
    alone = _unambiguous(found)
    if all(match is not None or not matches for match, matches in zip(alone, found, strict=True)):
        return [match for match in alone if match is not None]
    return _search(found, alone)


def _match(module: int, start: int, length: int, other: int, other_length: int) -> Match:
    gain = length + other_length if module == EXACT else length // 2 + other_length // 2
    return Match(
        module, start, length, other, other_length,
        ((1 << length) - 1) << start, ((1 << other_length) - 1) << other,
        abs(start - other), -MATCH * gain,
    )  # fmt: skip


def _matches(candidate: Sentence, reference: Sentence, vocabulary: Vocabulary) -> list[list[Match]]:
    """All matches that begin at each word of the reference, in the order of the modules."""
    only_exact = vocabulary.equal(candidate, reference)
    found = []
    for start, word in enumerate(reference.words):
        modules = vocabulary.modules(word, candidate.words)
        found.append(_of_word(start, modules, only_exact) if any(modules) else [])
    if not only_exact:
        _add_paraphrases(found, candidate, reference, vocabulary)
    return found


def _of_word(start: int, modules: Sequence[Modules], only_exact: bool) -> list[Match]:
    matches = (
        _match(module, start, 1, other, 1)
        for other, matching in enumerate(modules)
        for module in matching
        if module == EXACT or not only_exact
    )
    return sorted(matches, key=itemgetter(0))


def _add_paraphrases(
    found: list[list[Match]], candidate: Sentence, reference: Sentence, vocabulary: Vocabulary
) -> None:
    """Adds phrases of the reference with their paraphrases, then phrases of the candidate."""
    for start, length, number in reference.phrases:
        for other, other_length in _occurring(number, candidate, vocabulary):
            found[start].append(_match(PARAPHRASE, start, length, other, other_length))
    for other, other_length, number in candidate.phrases:
        for start, length in _occurring(number, reference, vocabulary):
            found[start].append(_match(PARAPHRASE, start, length, other, other_length))


def _occurring(phrase: int, sentence: Sentence, vocabulary: Vocabulary) -> list[tuple[int, int]]:
    """Starts and lengths of the paraphrases of a phrase in a caption, in the table's order."""
    ranks = vocabulary.paraphrases[phrase]
    there = ranks.keys() & sentence.starts.keys()
    if not there:
        return []
    in_order = sorted((rank, number) for number in there for rank in ranks[number])
    return [
        (start, vocabulary.lengths[number])
        for _, number in in_order
        for start in sentence.starts[number]
    ]


def _unambiguous(found: list[list[Match]]) -> list[Match | None]:
    """The match of each word that is the only one, and that no other match overlaps."""
    once = twice = other_once = other_twice = 0
    for matches in found:
        for match in matches:
            twice |= once & match.covered
            once |= match.covered
            other_twice |= other_once & match.other_covered
            other_once |= match.other_covered
    return [
        matches[0]
        if len(matches) == 1
        and not matches[0].covered & twice
        and not matches[0].other_covered & other_twice
        else None
        for matches in found
    ]


def _search(found: list[list[Match]], alone: list[Match | None]) -> list[Match]:
    used = other_used = 0
    for match in alone:
        if match is not None:
            used |= match.covered
            other_used |= match.other_covered
    states: list[State] = [(0, used, other_used, -1, None)]
    for place, (match, matches) in enumerate(zip(alone, found, strict=True)):
        states = sorted(states, key=itemgetter(0))[:BEAM]
        if match is not None:
            states = [_followed(state, match, state[0] + match.distance) for state in states]
        elif used >> place & 1:  # inside a match that is the only one
            continue
        elif matches:
            states = [new for state in states for new in _branches(state, place, matches)]
        else:
            states = [state if state[1] >> place & 1 else _skipped(state) for state in states]
    states = sorted(states, key=itemgetter(0))[:BEAM]
    chain: Chain = min(map(_skipped, states), key=itemgetter(0))[4]
    chosen = []
    while chain is not None:
        match, chain = chain
        chosen.append(match)
    return chosen[::-1]


def _branches(state: State, place: int, matches: list[Match]) -> list[State]:
    """The alignment with each match that is free, and without any."""
    order, used, other_used, end, chain = state
    if used >> place & 1:
        return [state]
    new: list[State] = []
    for match in matches:
        if not used & match.covered and not other_used & match.other_covered:
            new.append(_followed((order, used, other_used, end, chain), match, order))
            order += match.distance
    new.append(_skipped((order, used, other_used, end, chain)))
    return new


def _followed(state: State, match: Match, order: int) -> State:
    """The alignment with a match after it. order: of it, without the match and its chunk."""
    _, used, other_used, end, chain = state
    order += match.gain
    if end not in (-1, match.other):
        order += CHUNK
    return (
        order,
        used | match.covered,
        other_used | match.other_covered,
        match.other + match.other_length,
        (match, chain),
    )


def _skipped(state: State) -> State:
    """The alignment after a word without a match, which ends a chunk."""
    order, used, other_used, end, chain = state
    return state if end == -1 else (order + CHUNK, used, other_used, -1, chain)
