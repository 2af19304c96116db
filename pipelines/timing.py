"""How long a job takes: the seconds of a pair, measured in a worker, and what follows from them."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cc_prep.errors import RejectedPair
from cc_prep.steps.base import MakeStep, Prefetches, Staged, Step
from cc_prep.words import counted, duration
from pipelines.shards import PlannedShard
from pipelines.state.journal import Done, Journal

# A trial ends after so many seconds, or pairs, of which the first batch is a warm-up.
TRIAL_SECONDS = 5.0
TRIAL_PAIRS = 65


@dataclass(frozen=True)
class Speed:
    """So many pairs took workers so many seconds, without their start.

    Attributes:
        pairs: 0 where nothing was measured.
        seconds: Of workers.
    """

    pairs: int = 0
    seconds: float = 0.0

    def __add__(self, other: Speed) -> Speed:
        return Speed(self.pairs + other.pairs, self.seconds + other.seconds)

    @property
    def a_pair(self) -> float:
        """Seconds of a worker for a pair, not zero."""
        return max(self.seconds / self.pairs, 1e-6)

    def left(self, shards: Iterable[int], workers: int) -> float:
        """Seconds until shards with so many pairs left are finished.

        A worker takes the next shard as soon as it is free. So the last shard may keep one busy
        while the others have nothing to do.
        """
        free = [0.0] * max(1, workers)
        for pairs in shards:
            heapq.heapreplace(free, free[0] + pairs * self.a_pair)
        return max(free)


def speed_of(done: Iterable[Done], journals: Iterable[Journal] = ()) -> Speed:
    """That of finished shards, and of shards under way as far as they are."""
    finished = (Speed(one.pairs, one.seconds - one.start_seconds) for one in done)
    under_way = (Speed(one.done + one.rejected, one.seconds) for one in journals)
    return sum((one for one in (*finished, *under_way) if one.pairs), Speed())


@dataclass(frozen=True)
class Trial:
    """What a worker took for a few pairs, none of which was written.

    Attributes:
        start_seconds: Until the networks were there and had seen a first batch.
        speed: Of the pairs after that; of the first batch where there is no other. Of no pair
            where all were rejected.
        parts: Shares of reading, computing and encoding; empty for steps without these stages.
        all_seconds: Of the trial.
    """

    start_seconds: float
    speed: Speed
    parts: dict[str, float]
    all_seconds: float


def try_out(shard: PlannedShard, make_step: MakeStep, device: str) -> Trial:
    """Makes some pairs of a shard in this process, and throws them away.

    Raises what the step raises. Pairs that are rejected count as all others do: a job has them too.

    Args:
        device: `cpu` or `cuda`; on the second, the stages of a step overlap in a job, so that the
            slowest one alone counts.
    """
    began = time.monotonic()
    step = make_step(device)
    size = step.pairs_per_batch
    items = list(itertools.islice(shard.items(), max(TRIAL_PAIRS, 2 * size)))
    if isinstance(step, Prefetches):
        step.prefetch(shard.pairs[: len(items)])
    timed, made, first = _Timed(step, device != "cpu"), time.monotonic() - began, None
    for start in range(0, len(items), size):
        timed(items[start : start + size])
        if first is None and timed.made:
            first, warm = timed.take(), time.monotonic() - began
            if first[0].seconds > TRIAL_SECONDS:  # a warm-up is little of it
                break
        elif timed.total > TRIAL_SECONDS:
            break
    if first is not None and timed.pairs:
        return Trial(warm, *timed.take(), time.monotonic() - began)
    return Trial(made, *(first or timed.take()), time.monotonic() - began)


class _Timed:
    """Takes batches through a step, and the time of each stage."""

    def __init__(self, step: Step, overlaps: bool) -> None:
        self.step, self.overlaps = step, overlaps
        self.pairs, self.made, self.seconds = 0, 0, dict[str, float]()
        self.warm = False  # a pair was made in an earlier measurement

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def __call__(self, items: Sequence[Any]) -> None:
        if isinstance(self.step, Staged):
            inputs = self._time("read", self.step.read, items)
            computed = self._time("compute", self.step.compute, items, inputs)
            outcomes = self._time("encode", self.step.encode, items, computed)
        else:
            outcomes = self._time("compute", self.step, items)
        self.pairs += len(outcomes)
        self.made += sum(not isinstance(one, RejectedPair) for one in outcomes)

    def _time(self, stage: str, function: Any, *arguments: Any) -> Any:
        began = time.monotonic()
        result = function(*arguments)
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - began
        return result

    def take(self) -> tuple[Speed, dict[str, float]]:
        """What was measured since the last call."""
        seconds = max(self.seconds.values()) if self.overlaps else self.total
        parts = {n: s / self.total for n, s in self.seconds.items()} if self.total else {}
        pairs = self.pairs if self.made or self.warm else 0
        taken = Speed(pairs, seconds), parts if len(parts) > 1 else {}
        self.warm = self.warm or self.made > 0
        self.pairs, self.made, self.seconds = 0, 0, {}
        return taken


def in_words(trials: Sequence[Trial], starting: float, shards: Sequence[int], workers: int) -> str:
    """The estimate of a job in words, from trials that ran at the same time.

    Args:
        starting: Seconds that Ray and its processes took to start.
        shards: Pairs to make by shard.
    """
    speed = sum((trial.speed for trial in trials), Speed())
    if not speed.pairs:
        return "not known: the first pairs are all rejected"
    start = starting + max(trial.start_seconds for trial in trials)
    parts = {
        name: sum(trial.parts.get(name, 0.0) for trial in trials) / len(trials)
        for name in trials[0].parts
    }
    shares = ", ".join(f"{name} {share:.0%}" for name, share in parts.items())
    return (
        f"about {duration(start + speed.left(shards, workers))} with {counted(workers, 'worker')}: "
        f"{start:.0f} s to start, then {in_seconds(speed.a_pair)} of a worker for a pair"
        + (f" ({shares})" if shares else "")
        + f", measured on {counted(speed.pairs, 'pair')}"
    )


def in_seconds(value: float) -> str:
    """Seconds with two or three digits."""
    return f"{value:.0f} s" if value >= 100 else f"{value:.2g} s"
