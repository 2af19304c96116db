"""Overlaps a step's batches: the next is read and the last encoded while one is computed.

A network on a GPU leaves the processor free, so there each stage has a thread of its own, and
finished batches are written in the worker's main thread. On a CPU the network itself takes all
cores of a worker, so batches go one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cc_prep.errors import FileRefused, RejectedPair, StoreFailed, StoreRefused
from pipelines.state.pace import Pace
from pipelines.steps.base import Item, Sample, Staged, Step

Outcome = Sample | RejectedPair
Outcomes = Sequence[Outcome]


@dataclass
class Batch:
    """Items that go through the step together.

    needs_work: whether the step makes the outcomes. inputs: the inputs, being read. computing: ends
    when the network is done. outcomes: finished, or being encoded. error: of any of these stages.
    """

    items: Sequence[Item]
    needs_work: bool
    inputs: Future[Any] | None = None
    computing: Future[None] | None = None
    outcomes: Outcomes | Future[Outcomes] | None = None
    error: Exception | None = None

    def result(self) -> Outcomes:
        """Waits for the outcomes. Raises what the step raised."""
        if self.error is not None:
            raise self.error
        assert self.outcomes is not None
        return self.outcomes.result() if isinstance(self.outcomes, Future) else self.outcomes


class Pipeline:
    """Takes a shard's batches in order and yields their outcomes in the same order.

    step: makes the step at the first call. overlaps: whether stages overlap; then, while one batch
    is computed, at most two are read, one is encoded and one written. recover: returns the outcomes
    of items whose batch failed; their place in the order stays. succeeded: called for each batch
    that did not fail.
    """

    def __init__(
        self,
        step: Callable[[], Step],
        overlaps: bool,
        recover: Callable[[Sequence[Item], Exception], Outcomes],
        succeeded: Callable[[], None],
        pace: Pace,
    ) -> None:
        self.step, self.overlaps = step, overlaps
        self.recover, self.succeeded, self.pace = recover, succeeded, pace
        self._ahead: deque[Batch] = deque()
        self._current: Batch | None = None
        self._behind: deque[Batch] = deque()
        self._threads: dict[str, ThreadPoolExecutor] = {}

    def items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items; the next one is read from its shard in the background."""
        if not self._starts_threads():
            yield from items
            return
        iterator, reader = iter(items), self._threads["read"]
        upcoming = reader.submit(next, iterator, None)
        while (item := upcoming.result()) is not None:
            upcoming = reader.submit(next, iterator, None)
            yield item

    def unfinished(self) -> list[Item]:
        """Items that are being worked on."""
        current = [] if self._current is None else [self._current]
        batches = (*self._behind, *current, *self._ahead)
        return [item for batch in batches for item in batch.items]

    def add(
        self, items: Sequence[Item], outcomes: Outcomes | None = None
    ) -> Iterator[tuple[Item, Outcome]]:
        """Starts a batch, or takes one with its outcomes; yields all that is finished."""
        batch = Batch(items, outcomes is None, outcomes=outcomes)
        if batch.needs_work and self._starts_threads():
            batch.inputs = self._threads["read"].submit(self._staged().read, items)
        self._ahead.append(batch)
        yield from self._advance(1 if self._threads else 0)

    def flush(self) -> Iterator[tuple[Item, Outcome]]:
        """Finishes and yields all batches in progress."""
        yield from self._advance(0)
        self._settle()
        yield from self._finish_but(0)

    def close(self) -> None:
        """Drops all batches in progress, once no thread works on them."""
        for thread in self._threads.values():
            thread.shutdown(cancel_futures=True)

    def _advance(self, ahead: int) -> Iterator[tuple[Item, Outcome]]:
        """Computes batches until at most `ahead` are waiting."""
        while len(self._ahead) > ahead:
            self._settle()
            if self._behind and self._behind[-1].error is not None:
                # A failed batch has its turn before another one is put on the device.
                yield from self._finish_but(0)
            self._begin(self._ahead.popleft())
            if not self._threads:
                self._settle()
            yield from self._finish_but(1 if self._threads else 0)

    def _begin(self, batch: Batch) -> None:
        self._current = batch
        if batch.inputs is not None:
            batch.computing = self._threads["compute"].submit(self._compute, batch)
        elif batch.needs_work:
            self._compute(batch)

    def _settle(self) -> None:
        """Waits until nothing is on the device."""
        if self._current is not None:
            if self._current.computing is not None:
                self._current.computing.result()
            self._behind.append(self._current)
            self._current = None

    def _compute(self, batch: Batch) -> None:
        try:
            with self.pace.working(len(batch.items)):
                if batch.inputs is None:
                    batch.outcomes = self.step()(batch.items)
                    return
                step = self._staged()
                computed = step.compute(batch.items, batch.inputs.result())
            batch.outcomes = self._threads["encode"].submit(step.encode, batch.items, computed)
        except Exception as error:
            batch.error = error
        finally:
            batch.inputs = None

    def _finish_but(self, most: int) -> Iterator[tuple[Item, Outcome]]:
        """Yields computed batches, in order, until at most `most` are left."""
        while len(self._behind) > most:
            yield from self._finish(self._behind.popleft())

    def _finish(self, batch: Batch) -> Iterator[tuple[Item, Outcome]]:
        try:
            outcomes = batch.result()
        except (StoreFailed, StoreRefused, FileRefused):  # no item's fault
            raise
        except Exception as error:
            failure: Exception | None = error
        else:
            failure = None
            if batch.needs_work:
                self.succeeded()
        if failure is not None:
            # Outside the handler, where the error's frames no longer hold the batch's tensors.
            batch.error = batch.outcomes = None
            self._settle()
            outcomes = self.recover(batch.items, failure)
        yield from zip(batch.items, outcomes, strict=True)

    def _starts_threads(self) -> bool:
        """Starts the threads if stages overlap; returns whether they do."""
        if not self._threads and self.overlaps and isinstance(self.step(), Staged):
            self._threads = {
                name: ThreadPoolExecutor(1, name) for name in ("read", "compute", "encode")
            }
        return bool(self._threads)

    def _staged(self) -> Staged:
        step = self.step()
        assert isinstance(step, Staged)
        return step
