"""Progress of a job: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from cc_prep.errors import StoreFailed, UserError
from cc_prep.words import counted
from pipelines.state.journal import Done, State

POLL_SECONDS = 1.0
LINE_SECONDS = 15.0


@dataclass(frozen=True)
class Counts:
    """Pairs of a job: all planned, done and rejected so far, over every run into the folder.

    Attributes:
        under_way: Shards that a worker has begun and not finished, also before a crash.
    """

    planned: int
    done: int
    rejected: int
    shards: int
    shards_done: int
    under_way: int

    @property
    def finished(self) -> int:
        return self.done + self.rejected


def count(state: State, plan: dict[str, int], finished: Mapping[str, Done]) -> Counts:
    """Counts of a plan, from finished shards and from the journals of unfinished ones."""
    done = {name: d for name, d in dict(finished).items() if name in plan}
    under_way = [j for j in state.journals() if j.shard in plan and j.shard not in done]
    return Counts(
        planned=sum(plan.values()),
        done=sum(d.samples for d in done.values()) + sum(j.done for j in under_way),
        rejected=sum(len(d.rejects) for d in done.values()) + sum(j.rejected for j in under_way),
        shards=len(plan),
        shards_done=len(done),
        under_way=len(under_way),
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
        self.started, self.first = time.monotonic(), count(state, plan, finished)
        self.latest = self.first
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
                bar.update(task, completed=now.finished, description=self.line(now))

    def _lines(self) -> None:
        shown, shown_at = self.first.finished, time.monotonic()
        while not self.stop.wait(self.pause):
            if time.monotonic() - shown_at < LINE_SECONDS:
                continue
            now, shown_at = self.counts(), time.monotonic()
            if now.finished == shown == self.first.finished and not now.under_way:
                self._say_that_it_waits()
            if now.finished != shown:
                self.console.print(self.line(now))
                shown = now.finished

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
            self.latest = count(self.state, self.plan, self.finished)
        except (OSError, StoreFailed, UserError):  # the next look may succeed
            self.pause = LINE_SECONDS
            return self.latest
        now = self.latest
        if now.finished < self.first.finished:
            # A shard that an earlier run left unfinished starts again, and so does the rate.
            self.started, self.first = time.monotonic(), now
        # Looking takes long on an object store with many shards: spend a twentieth of the time.
        self.pause = max(POLL_SECONDS, 20 * (time.monotonic() - began))
        return now

    def line(self, now: Counts) -> str:
        """The progress of the job in words."""
        new_pairs = now.finished - self.first.finished
        rate = new_pairs / (time.monotonic() - self.started)
        starting = "starting" if now.under_way else f"waiting for {counted(self.workers, 'worker')}"
        time_left = (
            f"{clock((now.planned - now.finished) / rate)} left" if new_pairs > 0 else starting
        )
        return (
            f"{now.finished}/{now.planned} pairs, {now.rejected} rejected, "
            f"{now.shards_done}/{now.shards} shards, {rate:.2f} pairs/s, {time_left}"
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
