"""METEOR's alignment of two captions: which words match, in the fewest chunks.

A beam of 40 partial alignments passes over the words of the reference. The choice among equals
follows the program: its order of matches, its stable sort, and the distance of a match, which it
adds to the alignment that does without the match and to those that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

from cc_train.evaluation.captions.meteor.sentences import (
    EXACT,
    PARAPHRASE,
    Modules,
    Sentence,
    Vocabulary,
)

BEAM = 40
# The order of alignments as one number: more matches, then fewer chunks, then less distance.
CHUNK = 1 << 40
MATCH = 1 << 60

Chain = tuple["Match", "Chain"] | None
State = tuple[int, int, int, int, Chain]  # order, used words of both, end of the last match, chain


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
    matches = [
        _match(module, start, 1, other, 1)
        for other, matching in enumerate(modules)
        for module in matching
        if module == EXACT or not only_exact
    ]
    return sorted(matches, key=itemgetter(0)) if len(matches) > 1 else matches


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
        if len(states) > 1:
            states.sort(key=itemgetter(0))
            del states[BEAM:]
        if match is not None:
            states = [_followed(state, match, state[0] + match.distance) for state in states]
        elif used >> place & 1:  # inside a match that is the only one
            continue
        elif matches:
            states = [new for state in states for new in _branches(state, place, matches)]
        else:
            states = [state if state[1] >> place & 1 else _skipped(state) for state in states]
    if len(states) > 1:
        states.sort(key=itemgetter(0))
        del states[BEAM:]
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
