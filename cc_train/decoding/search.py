"""Sentences from a decoder: greedy and beam search, a word at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from cc_train.decoding.next_word import NextWord
from cc_train.text import WORD_MARKS, Marks

NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    """A sentence of beam search.

    Attributes:
        ids: Without begin and end marks.
        score: The sum of log-probabilities, divided by the number of chosen words ** penalty.
    """

    ids: list[int]
    score: float


def greedy(
    decoder: NextWord, memory: Tensor, marks: Marks = WORD_MARKS, stop: bool = True
) -> Tensor:
    """The likeliest word at each step: ids int64 [B, length], begin mark first, padded at the end.

    Args:
        memory: What the decoder attends to of B pairs, [B, …].
        stop: End when all sentences have ended; ProCap's code continues, so the ids after an end
            mark are then whatever the decoder says there.
    """
    return scored_greedy(decoder, memory, marks, stop)[0]


@torch.inference_mode()
def scored_greedy(
    decoder: NextWord,
    memory: Tensor,
    marks: Marks = WORD_MARKS,
    stop: bool = True,
    state: Any = None,
) -> tuple[Tensor, Tensor]:
    """Greedy sentences as `greedy` returns them, and each one's log-probability, float32 [B].

    The log-probability is summed up to and including the end mark.

    Args:
        state: The result of `decoder.start(memory)`, if the caller wants to read it afterwards.
    """
    return _each_word(decoder, memory, marks, stop, state, lambda logits: logits.argmax(-1))


@torch.inference_mode()
def sampled(
    decoder: NextWord,
    memory: Tensor,
    generator: torch.Generator,
    marks: Marks = WORD_MARKS,
) -> Tensor:
    """Words drawn by their probabilities: ids int64 [B, length], as `greedy` gives them.

    Args:
        generator: Of the CPU, whatever device decodes.
    """

    def draw(logits: Tensor) -> Tensor:
        chances = logits.float().softmax(-1).cpu()
        return torch.multinomial(chances, 1, generator=generator)[:, 0].to(logits.device)

    return _each_word(decoder, memory, marks, True, None, draw)[0]


def _each_word(
    decoder: NextWord,
    memory: Tensor,
    marks: Marks,
    stop: bool,
    state: Any,
    choose: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Ids and summed log-probabilities; choose: logits [B, V] → words [B]."""
    length, count = decoder.length, len(memory)
    ids = torch.full((count, length), marks.pad, dtype=torch.long, device=memory.device)
    ids[:, 0] = marks.begin
    ended = torch.zeros(count, dtype=torch.bool, device=memory.device)
    scores = torch.zeros(count, device=memory.device)
    state = decoder.start(memory) if state is None else state
    for place in range(1, length):
        logits = decoder.step(ids[:, place - 1], memory, state)
        logits[:, list(marks.never)] = NEVER
        words = choose(logits)
        chosen = logits.float().log_softmax(-1).gather(1, words[:, None])[:, 0]
        scores += chosen.masked_fill(ended, 0.0)
        if stop:
            words = words.masked_fill(ended, marks.pad)
        ended |= words == marks.end
        ids[:, place] = words
        if stop and bool(ended.all()):
            break
    return ids, scores


@torch.inference_mode()
def beam(
    decoder: NextWord,
    memory: Tensor,
    width: int = 5,
    penalty: float = 0.0,
    marks: Marks = WORD_MARKS,
) -> list[list[Hypothesis]]:
    """The `width` best sentences of each of B pairs, best first.

    Each pair has a search of its own; a step of the decoder adds a word to the sentences of all.

    Args:
        memory: What the decoder attends to, [B, …].
        penalty: A score is divided by length ** penalty; 0 leaves plain sums. A sentence that does
            not end is cut at the decoder's length. There are fewer sentences than `width` where
            fewer are possible.
    """
    searches = [_Search(width, penalty, decoder.length, marks) for _ in memory]
    state, seen, pairs = decoder.start(memory), memory, list(range(len(memory)))
    while growing := [search for search in searches if search.live]:
        last = [ids[-1] for search in growing for _, ids in search.live]
        logits = decoder.step(torch.tensor(last, device=memory.device), seen, state)
        logits[:, list(marks.never)] = NEVER
        rows, first = list[int](), 0
        for search, candidates in zip(growing, _candidates(growing, logits), strict=True):
            count = len(search.live)
            rows += [first + row for row in search.grow(candidates)]
            first += count
        state = state.select(torch.tensor(rows, dtype=torch.long, device=memory.device))
        of_rows = [number for number, search in enumerate(searches) for _ in search.live]
        if of_rows != pairs:  # else each row has its memory already
            seen, pairs = memory[of_rows], of_rows
    return [search.done for search in searches]


class _Search:
    """The beam search of one pair, which ends when no sentence grows any more.

    Args:
        live: Scores and ids, begin mark first, of the sentences that grow, best first.
        done: The best sentences that have ended, best first.
    """

    def __init__(self, width: int, penalty: float, length: int, marks: Marks) -> None:
        self.width, self.penalty, self.length, self.end = width, penalty, length, marks.end
        self.live = [(0.0, [marks.begin])] if length > 1 else []
        self.done: list[Hypothesis] = []

    def grow(self, candidates: Iterable[tuple[float, int, int]]) -> list[int]:
        """Adds a word to the sentences; returns the former rows of those that now grow.

        Args:
            candidates: Score, row among `live`, and word of each, best first.
        """
        grown, rows = list[tuple[float, list[int]]](), list[int]()
        for score, row, word in candidates:
            ids = [*self.live[row][1], word]
            if word == self.end or len(ids) == self.length:
                words = ids[1:-1] if word == self.end else ids[1:]
                self.done.append(Hypothesis(words, score / (len(ids) - 1) ** self.penalty))
            elif len(grown) < self.width:
                grown.append((score, ids))
                rows.append(row)
        self.done = sorted(self.done, key=lambda hypothesis: -hypothesis.score)[: self.width]
        settled = grown and _settled(self.done, grown[0][0], self.width, self.penalty, self.length)
        self.live = [] if settled else grown
        return [] if settled else rows


def _candidates(
    searches: Sequence[_Search], logits: Tensor
) -> Iterator[list[tuple[float, int, int]]]:
    """The likeliest next words of each search, twice its width: score, row among its own, and word.

    Args:
        logits: Of the sentences of all searches, [rows, V].
    """
    log_probs = logits.float().log_softmax(-1)
    scores = [score for search in searches for score, _ in search.live]
    sums = log_probs + torch.tensor(scores, device=logits.device)[:, None]
    # One table for all, so that the device is asked once; sentences that a search lacks have NEVER.
    table = pad_sequence(sums.split([len(search.live) for search in searches]), True, NEVER)
    best = table.flatten(1).topk(min(2 * searches[0].width, table[0].numel()))
    for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        pairs = zip(values, numbers, strict=True)
        # There may be fewer words than the search asks for.
        yield [(value, *divmod(n, sums.shape[1])) for value, n in pairs if value != NEVER]


def _settled(done: list[Hypothesis], best: float, width: int, penalty: float, length: int) -> bool:
    """Whether no sentence that still grows can be among the `width` best."""
    reachable = best / length**penalty if penalty > 0 else best
    return len(done) >= width and done[-1].score >= reachable
