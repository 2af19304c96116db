"""Progress of a job: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from cc_prep.errors import StoreFailed, UserError
from cc_prep.words import counted, duration
from pipelines.state.journal import Done, State
from pipelines.timing import Speed, in_seconds, speed_of

POLL_SECONDS = 1.0
LINE_SECONDS = 15.0
MEASURED_SECONDS = 10.0  # of workers, after which their speed gives an estimate


@dataclass(frozen=True)
class Counts:
    """Pairs of a job: all planned, done and rejected so far, over every run into the folder.

    Attributes:
        under_way: Shards that a worker has begun and not finished, also before a crash.
        workers: Those of them that the run which lasts has begun.
        left: Pairs to make of each shard, those under way first.
        speed: Of the workers on these shards.
    """

    planned: int
    done: int
    rejected: int
    shards: int
    shards_done: int
    under_way: int
    workers: int = 0
    left: tuple[int, ...] = ()
    speed: Speed = field(default_factory=Speed)

    @property
    def finished(self) -> int:
        return self.done + self.rejected

    @property
    def pairs_per_second(self) -> float | None:
        """Of the workers at it; None before a pair is finished."""
        return self.workers / self.speed.a_pair if self.workers and self.speed.pairs else None

    @property
    def seconds_left(self) -> float | None:
        """With the workers at it; None before a pair is finished."""
        known = self.workers and self.speed.pairs
        return self.speed.left(self.left, self.workers) if known else None

    def rate(self) -> str:
        """Pairs a second and the time left; empty before a pair is finished."""
        rate, left = self.pairs_per_second, self.seconds_left
        return f"{rate:.2f} pairs/s, {clock(left)} left" if rate and left is not None else ""


def count(
    state: State,
    plan: dict[str, int],
    finished: Mapping[str, Done],
    earlier: Collection[str] = (),
) -> Counts:
    """Counts of a plan, from finished shards and from the journals of unfinished ones.

    Args:
        earlier: Shards whose speed does not count, as long as there are others.
    """
    done = {name: d for name, d in dict(finished).items() if name in plan}
    under_way = [j for j in state.journals() if j.shard in plan and j.shard not in done]
    runs = state.runs()
    live = [journal for journal in under_way if journal.run in runs]
    begun = {journal.shard: journal.done + journal.rejected for journal in under_way}
    left = [max(0, plan[name] - pairs) for name, pairs in begun.items()]
    left += [pairs for name, pairs in plan.items() if name not in done and name not in begun]
    new = [one for name, one in done.items() if name not in earlier]
    speed = speed_of(new, live)
    return Counts(
        planned=sum(plan.values()),
        done=sum(d.samples for d in done.values()) + sum(j.done for j in under_way),
        rejected=sum(len(d.rejects) for d in done.values()) + sum(j.rejected for j in under_way),
        shards=len(plan),
        shards_done=len(done),
        under_way=len(under_way),
        workers=len(live),
        left=tuple(left),
        speed=speed if speed.pairs else speed_of(done.values()),
    )


class Watcher:
    """Shows a job's counts from a thread of its own until the block ends.

    Args:
        finished: The finished shards, to which the job adds meanwhile.
        workers: The number expected.
    """

    def __init__(
        self,
        state: State,
        plan: dict[str, int],
        console: Console,
        finished: Mapping[str, Done],
        workers: int = 1,
    ) -> None:
        self.workers, self.waited = workers, False
        self.state, self.plan, self.console, self.finished = state, plan, console, finished
        self.earlier = frozenset(finished)
        self.first = self.latest = count(state, plan, finished)
        self.estimated, self.corrected = False, False
        self.stop, self.pause = threading.Event(), POLL_SECONDS
        self.thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watcher:
        self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop.set()
        self.thread.join()

    def _watch(self) -> None:
        if self.console.is_terminal:
            self._bar()
        else:
            self._lines()

    def _bar(self) -> None:
        columns = (SpinnerColumn(), BarColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task("starting", total=self.first.planned)
            while not self.stop.wait(self.pause):
                now = self.counts()
                self._estimate(now)
                bar.update(task, completed=now.finished, description=self.line(now))

    def _lines(self) -> None:
        shown, shown_at = self.first.finished, time.monotonic()
        while not self.stop.wait(self.pause):
            if self.corrected and time.monotonic() - shown_at < LINE_SECONDS:
                continue
            now = self.counts()
            self._estimate(now)
            if time.monotonic() - shown_at < LINE_SECONDS:
                continue
            shown_at = time.monotonic()
            if now.finished == shown == self.first.finished and not now.under_way:
                self._say_that_it_waits()
            if now.finished != shown:
                self.console.print(self.line(now))
                shown = now.finished

    def _estimate(self, now: Counts) -> None:
        """Prints the time of the whole job once it is known, and again after the first shard."""
        after_a_shard = now.shards_done > self.first.shards_done
        if not now.speed.pairs or not now.left or (self.estimated and not after_a_shard):
            return
        if self.corrected or (now.speed.seconds < MEASURED_SECONDS and not after_a_shard):
            return
        left = now.speed.left(now.left, self.workers)
        if left < LINE_SECONDS and not self.estimated:
            return
        what = "after the first shard: " if after_a_shard else ""
        self.console.print(
            f"{what}about {duration(left)} left for {counted(sum(now.left), 'pair')}, with "
            f"{counted(self.workers, 'worker')} of {in_seconds(now.speed.a_pair)} a pair"
        )
        self.estimated, self.corrected = True, after_a_shard

    def _say_that_it_waits(self) -> None:
        """Prints once that the job waits for a full cluster, or for one that is starting nodes."""
        if not self.waited:
            workers = counted(self.workers, "worker")
            self.console.print(f"waiting for Ray to start {workers}")
            self.waited = True

    def counts(self) -> Counts:
        """The present counts, from the job's files; the latest ones if these cannot be read."""
        began = time.monotonic()
        try:
            self.latest = count(self.state, self.plan, self.finished, self.earlier)
        except (OSError, StoreFailed, UserError):  # the next look may succeed
            self.pause = LINE_SECONDS
            return self.latest
        # Looking takes long on an object store with many shards: spend a twentieth of the time.
        self.pause = max(POLL_SECONDS, 20 * (time.monotonic() - began))
        return self.latest

    def line(self, now: Counts) -> str:
        """The progress of the job in words."""
        starting = "starting" if now.under_way else f"waiting for {counted(self.workers, 'worker')}"
        return (
            f"{now.finished}/{now.planned} pairs, {now.rejected} rejected, "
            f"{now.shards_done}/{now.shards} shards, {now.rate() or starting}"
        )


def clock(seconds: float) -> str:
    """Seconds as `1:02:03` or `02:03`."""
    hours, rest = divmod(int(seconds), 3600)
    minutes, seconds = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def amount(count: int) -> str:
    """Bytes as `12.3 MB`."""
    number, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
