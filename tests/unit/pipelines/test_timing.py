"""Times of jobs, from pairs that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import Reason, RejectedPair
from cc_prep.words import duration
from pipelines import timing
from pipelines.timing import Speed, Trial
from tests import job_factory

[SHARD] = job_factory.shards(6, 6)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


class Stages:
    """A step of three stages, the first of whose pairs takes long, and the second is rejected."""

    pairs_per_batch = 1

    def __init__(self, clock: Clock, first: float) -> None:
        self.made, self.first, self.clock = 0, first, clock
        clock.now += 3.0

    def read(self, items: Sequence[Any]) -> Sequence[Any]:
        self.clock.now += 0.25
        return items

    def compute(self, items: Sequence[Any], inputs: Sequence[Any]) -> Sequence[Any]:
        self.clock.now += 0.75 if self.made else self.first
        return inputs

    def encode(self, items: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
        self.made += 1
        rejected = RejectedPair(Reason.UNREADABLE_IMAGE, "")
        return [rejected if self.made == 2 else {"json": b"{}"}]

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        raise AssertionError("the stages are timed one by one")

    def free_memory(self) -> None: ...

    def check_device(self) -> None: ...


@pytest.mark.parametrize(("device", "a_pair"), [("cpu", 1.0), ("cuda", 0.75)])
def test_a_trial_leaves_out_the_first_pair_and_what_overlaps(
    clock: Clock, device: str, a_pair: float
) -> None:
    """Keeps away: a time with the first call of a network in it, or one in which a GPU waits for
    files, though these are read meanwhile."""
    trial = timing.try_out(SHARD, lambda _: Stages(clock, first=4.0), device)
    assert trial.speed.pairs == 5, "not the first; a job has rejects too"
    assert trial.speed.a_pair == a_pair
    assert (trial.start_seconds, trial.all_seconds) == (7.25, 12.25)
    assert trial.parts == {"read": 0.25, "compute": 0.75, "encode": 0.0}


def test_a_pair_that_takes_minutes_is_tried_once(clock: Clock) -> None:
    """Keeps away: a dry run that gives up while it makes a second pair of VFIformer's on a CPU."""
    trial = timing.try_out(SHARD, lambda _: Stages(clock, first=90.0), "cpu")
    assert trial.speed == Speed(1, 90.25)
    assert trial.start_seconds == 3.0


def test_the_pairs_of_a_shard_have_one_worker() -> None:
    """Keeps away: a time that eight workers share evenly, where a shard is left for one of them."""
    speed = Speed(pairs=10, seconds=20.0)
    assert speed.left([8, 4, 4], workers=2) == pytest.approx(16.0)
    assert speed.left([8, 1], workers=8) == pytest.approx(16.0)
    assert speed.left([3, 3, 3], workers=1) == pytest.approx(18.0)


def test_an_estimate_in_words() -> None:
    trials = [Trial(7.0, Speed(4, 3.0), {"read": 0.2, "compute": 0.8}, 9.0)]
    trials.append(Trial(8.0, Speed(4, 5.0), {"read": 0.4, "compute": 0.6}, 9.0))
    assert timing.in_words(trials, 4.0, [256] * 4, 2) == (
        "about 8.7 min with 2 workers: 12 s to start, then 1 s of a worker for a pair "
        "(read 30%, compute 70%), measured on 8 pairs"
    )


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (5400, "90 min"), (7200, "2 h"),
     (60 * 3600, "2.5 days"), (3e7, "347 days")],
)  # fmt: skip
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_folder_of_the_tests_is_left_alone(tmp_path: Path) -> None:
    """Keeps away: samples of a trial on a disk that only a job may write to."""
    timing.try_out(SHARD, lambda device: job_factory.NumberStep(str(tmp_path)), "cpu")
    assert list(tmp_path.iterdir()) == []


def test_pairs_are_announced_and_not_what_is_beside_them(tmp_path: Path) -> None:
    """Keeps away: a dry run that knows no time where changes or entities were found before."""
    announced: list[Any] = []

    class Announced(job_factory.NumberStep):
        def prefetch(self, items: Any) -> None:
            announced.extend(items)

    timing.try_out(SHARD, lambda device: Announced(str(tmp_path)), "cpu")
    assert announced == [*SHARD.pairs]


def test_nothing_is_known_of_pairs_that_are_all_rejected() -> None:
    class Rejects:
        pairs_per_batch = 1

        def __call__(self, items: Sequence[Any]) -> list[Any]:
            return [RejectedPair(Reason.UNREADABLE_IMAGE, "") for _ in items]

        def free_memory(self) -> None: ...

        def check_device(self) -> None: ...

    trial = timing.try_out(SHARD, lambda device: Rejects(), "cpu")
    assert trial.speed.pairs == 0
