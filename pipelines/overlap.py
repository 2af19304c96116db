"""Overlaps a step's batches: the next is read and the last encoded while one is computed.

A network on a GPU leaves the processor free, so there each stage has a thread of its own, and
finished batches are written in the worker's main thread.

Nothing here knows a journal or what becomes of a batch that failed: whoever iterates decides.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cc_prep.errors import RejectedPair
from cc_prep.steps.base import Item, Sample, Staged

Outcome = Sample | RejectedPair
Outcomes = Sequence[Outcome]
# One for each stage, by its name.
Threads = dict[str, ThreadPoolExecutor]


@dataclass
class Batch:
    """Items that go through the step together.

    Attributes:
        outcomes: One for each item; given beforehand where the step has nothing to do.
        isolate: Whether nothing else may be in progress meanwhile.
        seconds: Time that the device took; None before, and for a batch that failed.
        error: What a stage raised, in place of the outcomes.
    """

    items: Sequence[Item]
    outcomes: Outcomes | None = None
    isolate: bool = False
    seconds: float | None = None
    error: Exception | None = None


@contextmanager
def stage_threads() -> Iterator[Threads]:
    """A thread for each stage of a step.

    At the end, what has not begun is dropped, and what has is waited for.
    """
    threads = {name: ThreadPoolExecutor(1, name) for name in ("read", "compute", "encode")}
    try:
        yield threads
    finally:
        for thread in threads.values():
            thread.shutdown(cancel_futures=True)


def read_ahead(items: Iterable[Item], threads: Threads) -> Iterator[Item]:
    """The items; the next one is read from its shard in the background."""
    iterator, reader = iter(items), threads["read"]
    following = reader.submit(next, iterator, None)
    while (item := following.result()) is not None:
        following = reader.submit(next, iterator, None)
        yield item


def overlap(batches: Iterable[Batch | None], step: Staged, threads: Threads) -> Iterator[Batch]:
    """The batches in their order, each with its outcomes or an error.

    While one batch is computed, at most two are read, one is encoded and one is with the caller.
    When a batch with an error is yielded, nothing is on the device.

    Args:
        batches: Taken one by one as there is room; None has all before it finished and yielded
            before the next one is taken.
        threads: Of `stage_threads`.
    """
    stages = _Stages(step, threads)
    ahead: deque[_Staged] = deque()
    for batch in itertools.chain(batches, [None]):
        if batch is not None:
            ahead.append(stages.read(batch))
        while len(ahead) > (0 if batch is None else 1):
            if stages.has_failed():  # it has its turn before another one is put on the device
                yield from stages.finish_but(0)
            stages.compute(ahead.popleft())
            yield from stages.finish_but(1)
        if batch is None:
            stages.wait_for_device()
            yield from stages.finish_but(0)


@dataclass
class _Staged:
    """A batch on its way; None where the stage has not begun, or has nothing to do."""

    batch: Batch
    inputs: Future[Any] | None = None
    computing: Future[None] | None = None
    encoding: Future[Outcomes] | None = None


class _Stages:
    """The threads, what is on the device, and what comes after it in order."""

    def __init__(self, step: Staged, threads: Threads) -> None:
        self.step, self.threads = step, threads
        self._current: _Staged | None = None
        self._behind: deque[_Staged] = deque()

    def read(self, batch: Batch) -> _Staged:
        staged = _Staged(batch)
        if batch.outcomes is None:
            staged.inputs = self.threads["read"].submit(self.step.read, batch.items)
        return staged

    def compute(self, staged: _Staged) -> None:
        """Puts a batch on the device, which is free; its encoding follows by itself."""
        self._current = staged
        if staged.inputs is not None:
            staged.computing = self.threads["compute"].submit(self._compute, staged)

    def _compute(self, staged: _Staged) -> None:
        batch, began = staged.batch, time.monotonic()
        assert staged.inputs is not None
        try:
            computed = self.step.compute(batch.items, staged.inputs.result())
            batch.seconds = time.monotonic() - began
            encode = self.threads["encode"].submit
            staged.encoding = encode(self.step.encode, batch.items, computed)
        except Exception as error:
            batch.error = error
        finally:
            staged.inputs = None

    def wait_for_device(self) -> None:
        """Waits until nothing is on the device."""
        if self._current is not None:
            if self._current.computing is not None:
                self._current.computing.result()
            self._behind.append(self._current)
            self._current = None

    def has_failed(self) -> bool:
        """Waits until nothing is on the device; whether the last batch failed there."""
        self.wait_for_device()
        return bool(self._behind) and self._behind[-1].batch.error is not None

    def finish_but(self, most: int) -> Iterator[Batch]:
        """Yields computed batches, in order, until at most `most` are left."""
        while len(self._behind) > most:
            staged = self._behind.popleft()
            batch = staged.batch
            if staged.encoding is not None:
                try:
                    batch.outcomes = staged.encoding.result()
                except Exception as error:
                    batch.error = error
                staged.encoding = None
            if batch.error is not None:
                self.wait_for_device()
            yield batch
