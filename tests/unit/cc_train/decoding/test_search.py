"""Beam search over a table of next words, against all sentences that there are."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from cc_train.decoding import search
from cc_train.decoding.search import Hypothesis
from cc_train.text import BOS, EOS, PAD, UNK

WORDS, LENGTH = 8, 5


@dataclass
class Rows:
    """How many words each sentence has."""

    count: int = 0

    def select(self, rows: Tensor) -> Rows:
        return self


class Table:
    """A decoder whose next word depends on the last word and its place alone."""

    def __init__(self, seed: int, length: int = LENGTH, end: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(length - 1, WORDS, WORDS, generator=generator)
        self.table[..., EOS] += end
        self.length, self.steps = length, 0

    def start(self, memory: Tensor) -> Rows:
        return Rows()

    def step(self, ids: Tensor, memory: Tensor, state: Rows) -> Tensor:
        assert len(memory) == len(ids), "the memory of each sentence"
        self.steps += 1
        state.count += 1
        return self.table[state.count - 1, ids].clone()

    def every_sentence(self, penalty: float) -> list[tuple[float, list[int]]]:
        """All sentences with their scores, best first."""
        logits = self.table.clone()
        logits[..., UNK] = -torch.inf
        log_probs = logits.log_softmax(-1)
        words = [word for word in range(WORDS) if word not in (UNK, EOS)]
        scored = []
        for count in range(self.length):  # words without marks
            for ids in itertools.product(words, repeat=count):
                whole = [BOS, *ids, *([EOS] if count < self.length - 1 else [])]
                steps = enumerate(itertools.pairwise(whole))
                total = sum(float(log_probs[place, a, b]) for place, (a, b) in steps)
                scored.append((total / (len(whole) - 1) ** penalty, list(ids)))
        return sorted(scored, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all(seed: int, penalty: float) -> None:
    """Keeps away: a length that is off by one, and a search that ends before the best is found."""
    table = Table(seed)
    [hypotheses] = search.beam(table, torch.zeros(1, 1), width=600, penalty=penalty)
    for (score, words), one in zip(table.every_sentence(penalty)[:20], hypotheses, strict=False):
        assert one.ids == words
        assert one.score == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_narrow_beam_never_scores_above_the_best(penalty: float) -> None:
    for seed, width in itertools.product(range(10), (1, 2, 3)):
        table = Table(seed, end=-1.0)
        [hypotheses] = search.beam(table, torch.zeros(1, 1), width, penalty)
        scores = [one.score for one in hypotheses]
        assert len(hypotheses) == width
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(one.ids) for one in hypotheses}) == width
        exact = {tuple(words): score for score, words in table.every_sentence(penalty)}
        for one in hypotheses:
            assert one.score == pytest.approx(exact[tuple(one.ids)], abs=1e-4)


def test_a_penalty_makes_sentences_longer() -> None:
    """Keeps away: a penalty of the other sign."""
    lengths = {}
    for penalty in (0.0, 2.0):
        best = [search.beam(Table(seed), torch.zeros(1, 1), 5, penalty)[0][0] for seed in range(20)]
        lengths[penalty] = sum(len(one.ids) for one in best)
    assert lengths[2.0] > lengths[0.0]


def test_sentences_that_never_end_are_cut() -> None:
    table = Table(0, end=-1e9)
    [hypotheses] = search.beam(table, torch.zeros(1, 1), 3)
    assert all(len(one.ids) == LENGTH - 1 for one in hypotheses)


def test_the_search_ends_when_nothing_better_can_come() -> None:
    """Keeps away: steps to the full length for captions of three words."""
    table = Table(0, length=30, end=20.0)
    search.beam(table, torch.zeros(1, 1), width=2)
    assert table.steps == 2, "the empty sentence at once, and the next best with the next word"


@pytest.mark.parametrize(
    ("scores", "best", "penalty", "settled"),
    [
        ([-1.0, -2.0], -3.0, 0.0, True),
        ([-1.0, -2.0], -2.0, 0.0, True),
        ([-1.0, -2.0], -1.9, 0.0, False),
        ([-1.0], -3.0, 0.0, False),
        # At the full length of 10 a sum of −30 is a score of −3, one of −10 of −1.
        ([-1.0, -2.0], -30.0, 1.0, True),
        ([-1.0, -2.0], -10.0, 1.0, False),
    ],
)
def test_when_a_search_is_settled(
    scores: list[float], best: float, penalty: float, settled: bool
) -> None:
    """Keeps away: a search that ends while a longer sentence may still become the best."""
    done = [Hypothesis([7], score) for score in scores]
    assert search._settled(done, best, 2, penalty, 10) is settled


def test_enough_words_are_looked_at_to_grow_where_the_best_end() -> None:
    """Keeps away: fewer growing sentences than the beam is wide, as the best of the words end."""
    one = search._Search(3, 0.0, LENGTH, search.WORD_MARKS)
    [listed] = search._candidates([one], torch.randn(1, WORDS))
    assert len(listed) == 2 * 3


def test_greedy_pads_what_has_ended_and_goes_on_for_the_others() -> None:
    table = Table(0)
    table.table[:] = -10.0
    ordinary = [w for w in range(WORDS) if w not in (BOS, EOS, PAD, UNK)]
    a, b = ordinary[:2]
    for last, following in ((BOS, a), (a, b), (b, EOS), (EOS, a)):
        table.table[:, last, following] = 10.0
    table.table[..., UNK] = 100.0
    assert search.greedy(table, torch.zeros(2, 1)).tolist() == [[BOS, a, b, EOS, PAD]] * 2
    assert table.steps == 3
    assert search.greedy(table, torch.zeros(1, 1), stop=False).tolist() == [[BOS, a, b, EOS, a]]


class Tables(Table):
    """A table for each pair, whose number is its memory."""

    def __init__(self, tables: list[Table]) -> None:
        self.tables = torch.stack([one.table for one in tables])
        self.length, self.steps = tables[0].length, 0

    def step(self, ids: Tensor, memory: Tensor, state: Rows) -> Tensor:
        assert len(memory) == len(ids), "the memory of each sentence"
        self.steps += 1
        state.count += 1
        return self.tables[memory[:, 0].long(), state.count - 1, ids].clone()


@pytest.mark.parametrize("width", [1, 3, 20])
def test_a_beam_is_searched_for_each_pair_alone(width: int) -> None:
    """Keeps away: sentences of one pair among those of another, also once some have ended."""
    # Some searches end at once, others at the full length.
    tables = [Table(seed, end=end) for seed, end in enumerate((0.0, 20.0, -1e9, 3.0, 0.0))]
    numbers = torch.arange(len(tables), dtype=torch.float32)[:, None]
    together = Tables(tables)
    alone = [search.beam(table, torch.zeros(1, 1), width)[0] for table in tables]
    assert search.beam(together, numbers, width) == alone
    assert together.steps == max(table.steps for table in tables), "a step for all pairs"
    assert search.beam(together, numbers[:0], width) == []


def test_no_sentence_has_a_word_that_is_never_chosen() -> None:
    """Keeps away: hypotheses of probability 0 where fewer words are left than beams are asked for,
    whose score is no JSON."""
    [hypotheses] = search.beam(Table(0, length=2), torch.zeros(1, 1), width=WORDS)
    assert len(hypotheses) == WORDS - 1
    assert all(math.isfinite(one.score) and UNK not in one.ids for one in hypotheses)
