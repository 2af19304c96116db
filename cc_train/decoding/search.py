"""Sentences from a caption decoder: greedy and beam search, a word at a time.

The ids are those of full recomputation (tested). [UNK] is never chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cc_train.decoding.cached import WordByWord
from cc_train.text import BOS, EOS, PAD, UNK

NEVER = float("-inf")


@dataclass(frozen=True)
class Beam:
    """A sentence found by beam search. score: sum of log-probabilities / length ** penalty."""

    ids: list[int]
    score: float


@torch.inference_mode()
def greedy(decoder: WordByWord, memory: Tensor, stop: bool = True) -> Tensor:
    """The likeliest word at each step: ids [B, length], [BOS] first, [PAD] after [EOS].

    memory: [B, N, width]. stop: end when all sentences have ended; the reference goes on, so what
    follows an [EOS] is then whatever it says there.
    """
    length, count = decoder.config.length, len(memory)
    ids = torch.full((count, length), PAD, dtype=torch.long, device=memory.device)
    ids[:, 0] = BOS
    ended = torch.zeros(count, dtype=torch.bool, device=memory.device)
    past = decoder.start(memory)
    for place in range(1, length):
        logits = decoder.step(ids[:, place - 1], memory, past)
        logits[:, UNK] = NEVER
        words = logits.argmax(-1)
        if stop:
            words = words.masked_fill(ended, PAD)
            ended |= words == EOS
        ids[:, place] = words
        if stop and bool(ended.all()):
            break
    return ids


@torch.inference_mode()
def beam(
    decoder: WordByWord, memory: Tensor, width: int = 5, penalty: float = 0.0
) -> list[list[Beam]]:
    """The `width` best sentences of each item, best first; ids without [BOS] and [EOS].

    memory: [B, N, D]. penalty: a score is divided by length ** penalty; 0 leaves plain sums.
    A sentence that never ends is cut at the decoder's length.
    """
    return [_beam_of(decoder, one[None], width, penalty) for one in memory]


def _beam_of(decoder: WordByWord, memory: Tensor, width: int, penalty: float) -> list[Beam]:
    past = decoder.start(memory)
    live = [(0.0, [BOS])]
    done: list[Beam] = []
    for place in range(1, decoder.config.length):
        last = torch.tensor([ids[-1] for _, ids in live], device=memory.device)
        logits = decoder.step(last, memory.expand(len(live), -1, -1), past)
        logits[:, UNK] = NEVER
        chances = logits.float().log_softmax(-1)
        sums = chances + torch.tensor([[score] for score, _ in live], device=memory.device)
        best = sums.flatten().topk(min(2 * width, sums.numel()))
        grown: list[tuple[float, list[int]]] = []
        rows: list[int] = []
        for value, number in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            row, word = divmod(number, sums.shape[1])
            ids = [*live[row][1], word]
            if word == EOS or place == decoder.config.length - 1:
                words = ids[1:-1] if word == EOS else ids[1:]
                done.append(Beam(words, value / max(len(ids) - 1, 1) ** penalty))
            elif len(grown) < width:
                grown.append((value, ids))
                rows.append(row)
        done = sorted(done, key=lambda found: -found.score)[:width]
        if not grown or _settled(done, grown[0][0], width, penalty, decoder.config.length):
            break
        live, order = grown, torch.tensor(rows, device=memory.device)
        past = past.of(order)
    return done


def _settled(done: list[Beam], best: float, width: int, penalty: float, length: int) -> bool:
    """Whether no sentence that still grows can be among the `width` best."""
    reachable = best / length**penalty if penalty > 0 else best
    return len(done) >= width and done[-1].score >= reachable
