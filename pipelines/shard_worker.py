"""What a worker does with one shard: every pair in it ends as a sample or as a reject.

The worker notes in a journal which pairs are in flight before it touches them. If the process
dies, the next one that takes up the shard finds them there: they are then tried one by one, and a
pair that was in flight at two deaths is set aside and named. (Ray Data alone would retry for ever.)
"""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cc_prep import storage
from cc_prep.errors import JobFailed, Reason, RejectedPair, StoreFailed
from cc_prep.formats.base import ShardFormat
from cc_prep.formats.rejects import Reject
from pipelines.plan import ShardPlan
from pipelines.state.journal import Done, Journal, State
from pipelines.step import Item, MakeStep, Sample, Shard, Step, shard_from_json

CRASHES_OF_A_PAIR = 2
CRASHES_OUTSIDE_PAIRS = 3
# So many unexpected failures one after the other are no longer the pairs' fault.
FAILURES_IN_A_ROW = 5


@dataclass(frozen=True)
class RunInfo:
    """What all workers of a run share.

    folder: where shards go. id: the run's own, new in every run. device: where networks run.
    """

    folder: str
    id: str
    format: ShardFormat
    device: str


class ShardWorker:
    """A Ray Data actor: a row with a planned shard in, a row with its name out.

    The step is made at the first shard and not here: Ray would restart for ever, without a word, an
    actor whose constructor dies. In a shard the journal counts that death like any other.
    """

    def __init__(self, make_step: MakeStep, run_info: RunInfo) -> None:
        self.make_step, self.run_info = make_step, run_info
        self._step: Step | None = None
        self.state = State(run_info.folder)
        self.batch = 1
        self.failures = 0

    def step(self) -> Step:
        """The step, made when first asked for."""
        if self._step is None:
            self._step = self.make_step(self.run_info.device)
            self.batch = self._step.pairs_per_batch
        return self._step

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        return {"shard": [self.run(shard_from_json(json.loads(row))) for row in rows["shard"]]}

    def run(self, shard: Shard) -> str:
        """Makes the shard and its done file; the shard's name."""
        started = time.monotonic()
        journal = self._open_journal(shard)
        self.state.write_journal(journal)
        self.step()  # if it cannot be made, before anything is written
        place = storage.join(self.run_info.folder, self.run_info.format.file(shard.name))
        rejects: list[Reject] = []
        with self.run_info.format.write(place) as (writer, written):
            for pair, outcome in self._outcomes(shard, journal, place):
                if isinstance(outcome, RejectedPair):
                    rejects.append(_reject(pair, shard, outcome))
                    journal.rejected += 1
                else:
                    writer.add(pair.key, outcome)
                    journal.done += 1
            journal.in_flight = []
            self.state.write_journal(journal)
        self.state.write_done(
            Done(
                shard.name,
                shard.count,
                shard.digest(),
                written.samples,
                written.bytes,
                written.sha256,
                round(time.monotonic() - started, 3),
                tuple(rejects),
                written.index,
            )
        )
        return shard.name

    def _open_journal(self, shard: Shard) -> Journal:
        """A new journal that remembers the crashes of the one left behind, if there is one."""
        journal = Journal(shard.name, self.run_info.id, socket.gethostname())
        previous = self.state.journal(shard.name)
        if previous is None:
            return journal
        journal.crashes = previous.crashes
        # Only a crash that this run outlived is a worker's: otherwise the whole job was stopped.
        if previous.run == self.run_info.id:
            for key in previous.in_flight:
                journal.crashes[key] = journal.crashes.get(key, 0) + 1
            outside = previous.crashes_outside_pairs + (not previous.in_flight)
            if outside >= CRASHES_OUTSIDE_PAIRS:
                raise JobFailed(f"{shard.name}: its worker died {outside} times between pairs")
            journal.crashes_outside_pairs = outside
        return journal

    def _outcomes(
        self, shard: Shard, journal: Journal, place: str
    ) -> Iterator[tuple[Item, Sample | RejectedPair]]:
        """Every pair of the shard in order, each with its sample or its rejection."""
        keep = isinstance(shard, ShardPlan) and shard.keep_existing
        existing = _ExistingSamples(self.run_info.format, place if keep else None)
        waiting: list[Item] = []
        for pair in shard.items():
            crashes = journal.crashes.get(pair.key, 0)
            sample = existing.take(pair.key)
            if sample is None and crashes == 0:
                waiting.append(pair)
                if len(waiting) < self.batch:
                    continue
            yield from self._batch(waiting, journal)
            if sample is not None:
                yield pair, sample
            elif crashes >= CRASHES_OF_A_PAIR:
                detail = f"{crashes} workers died with it in flight"
                yield pair, RejectedPair(Reason.KILLED_ITS_PROCESS, detail)
            elif crashes:
                yield from self._batch([pair], journal)
            waiting = []
        yield from self._batch(waiting, journal)

    def _batch(
        self, pairs: Sequence[Item], journal: Journal
    ) -> Iterator[tuple[Item, Sample | RejectedPair]]:
        if pairs:
            journal.in_flight = [pair.key for pair in pairs]
            self.state.write_journal(journal)
            yield from zip(pairs, self._process(pairs), strict=True)

    def _process(self, pairs: Sequence[Item]) -> list[Sample | RejectedPair]:
        """The step's results; a batch that does not fit or fails is tried in smaller parts."""
        try:
            results = self.step()(pairs)
        except StoreFailed:  # no pair's fault
            raise
        except Exception as error:
            failure = error
        else:
            self.failures = 0
            return results
        # Outside the handler, so that the failed batch's tensors are no longer held by its frames.
        out_of_memory = _is_out_of_memory(failure)
        if out_of_memory:
            failure.__traceback__ = None
            self.step().free_memory()
        if len(pairs) > 1:
            half = (len(pairs) + 1) // 2 if out_of_memory else 1
            if out_of_memory:
                self.batch = min(self.batch, half)
            parts = [pairs[i : i + half] for i in range(0, len(pairs), half)]
            return [result for part in parts for result in self._process(part)]
        if out_of_memory:
            return [RejectedPair(Reason.OUT_OF_MEMORY, str(failure).splitlines()[0])]
        return [self._failed(pairs[0], failure)]

    def _failed(self, pair: Item, error: Exception) -> RejectedPair:
        self.failures += 1
        description = f"{type(error).__name__}: {error}"
        if self.failures >= FAILURES_IN_A_ROW:
            raise JobFailed(
                f"{self.failures} pairs failed one after the other, the last, {pair.key}, "
                f"with {description}"
            ) from error
        where = traceback.extract_tb(error.__traceback__)[-1]
        return RejectedPair(Reason.FAILED, f"{description} ({where.filename}:{where.lineno})")


class _ExistingSamples:
    """The samples of a shard's present file, taken over one by one in their order."""

    def __init__(self, format: ShardFormat, place: str | None) -> None:
        self.samples = format.read(place) if place is not None else iter(())
        self.next = next(self.samples, None)

    def take(self, key: str) -> Sample | None:
        """The sample of `key` if it is the next one in the file."""
        if self.next is None or self.next[0] != key:
            return None
        sample = self.next[1]
        self.next = next(self.samples, None)
        return sample


def _is_out_of_memory(error: Exception) -> bool:
    # torch's type by name: a worker without torch must not import it to find out.
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _reject(pair: Item, shard: Shard, error: RejectedPair) -> Reject:
    message = error.detail.replace("\x00", "")[:500]
    return Reject(pair.key, pair.id, pair.split, pair.kind, shard.name, error.reason.value, message)
