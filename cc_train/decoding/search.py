"""Sentences from a decoder: greedy and beam search, a word at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cc_train.decoding.next_word import NextWord
from cc_train.text import WORD_MARKS, Marks

NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    """A sentence of beam search. ids: without begin and end marks.

    score: the sum of log-probabilities, divided by the number of chosen words ** penalty.
    """

    ids: list[int]
    score: float


def greedy(
    decoder: NextWord, memory: Tensor, marks: Marks = WORD_MARKS, stop: bool = True
) -> Tensor:
    """The likeliest word at each step: ids int64 [B, length], begin mark first, padded at the end.

    memory: what the decoder attends to of B pairs, [B, …]. stop: end when all sentences have ended;
    ProCap's code continues, so the ids after an end mark are then whatever the decoder says there.
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

    The log-probability is summed up to and including the end mark. state: the result of
    `decoder.start(memory)`, if the caller wants to read it afterwards.
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

    generator: of the CPU, whatever device decodes.
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

    memory: what the decoder attends to, [B, …]. penalty: a score is divided by length ** penalty; 0
    leaves plain sums. A sentence that does not end is cut at the decoder's length. There are fewer
    sentences than `width` where fewer are possible.
    """
    return [_beam_of(decoder, one[None], width, penalty, marks) for one in memory]


def _beam_of(
    decoder: NextWord, memory: Tensor, width: int, penalty: float, marks: Marks
) -> list[Hypothesis]:
    state = decoder.start(memory)
    live = [(0.0, [marks.begin])]
    done: list[Hypothesis] = []
    for place in range(1, decoder.length):
        last = torch.tensor([ids[-1] for _, ids in live], device=memory.device)
        logits = decoder.step(last, memory.expand(len(live), *memory.shape[1:]), state)
        logits[:, list(marks.never)] = NEVER
        log_probs = logits.float().log_softmax(-1)
        sums = log_probs + torch.tensor([[score] for score, _ in live], device=memory.device)
        best = sums.flatten().topk(min(2 * width, sums.numel()))
        grown: list[tuple[float, list[int]]] = []
        rows: list[int] = []
        for value, number in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if value == NEVER:  # there are fewer words than the search asks for
                break
            row, word = divmod(number, sums.shape[1])
            ids = [*live[row][1], word]
            if word == marks.end or place == decoder.length - 1:
                words = ids[1:-1] if word == marks.end else ids[1:]
                done.append(Hypothesis(words, value / max(len(ids) - 1, 1) ** penalty))
            elif len(grown) < width:
                grown.append((value, ids))
                rows.append(row)
        done = sorted(done, key=lambda hypothesis: -hypothesis.score)[:width]
        if not grown or _settled(done, grown[0][0], width, penalty, decoder.length):
            break
        live, order = grown, torch.tensor(rows, device=memory.device)
        state = state.select(order)
    return done


def _settled(done: list[Hypothesis], best: float, width: int, penalty: float, length: int) -> bool:
    """Whether no sentence that still grows can be among the `width` best."""
    reachable = best / length**penalty if penalty > 0 else best
    return len(done) >= width and done[-1].score >= reachable
