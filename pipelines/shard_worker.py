"""The worker's job for one shard: every pair in it becomes a sample or a reject.

Before the worker touches pairs, it records them as in flight in a journal. If the process dies, the
next one that takes the shard tries these pairs one by one, and rejects a pair that was in flight at
two crashes. If writing the journal takes long, as on an object store, more pairs are recorded at a
time. (Ray Data alone would retry for ever.)
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from cc_prep import devices, storage
from cc_prep.errors import (
    FileRefused,
    JobFailed,
    Reason,
    RejectedPair,
    StoreFailed,
    StoreRefused,
    UserError,
    first_line,
)
from cc_prep.formats.rejects import Reject, encodable
from cc_prep.formats.tar import DamagedShard, ShardFormat
from cc_prep.steps.base import Item, MakeStep, Prefetches, Sample, Staged, Step
from pipelines.overlap import Batch, overlap, read_ahead, stage_threads
from pipelines.shards import PlannedShard
from pipelines.state.device import BrokenDevice, gpu_model
from pipelines.state.journal import Done, Journal, Pace, State, open_journal

CRASHES_OF_A_PAIR = 2
# A GPU that passes its check and fails at so many pairs of a shard all the same is broken too.
DEVICE_FAULTS = 6
# So many unexpected failures one after the other are no longer the pairs' fault.
FAILURES_IN_A_ROW = 5
NO_PAIRS_FAULT = (StoreFailed, StoreRefused, FileRefused)
# A file of a name that was never asked for is seen at once even on NFS; some seconds all the same.
VISIBLE_SECONDS = 10.0
PACKAGES = ("cc_prep", "pipelines", "cc_train")


@cache
def code_digest() -> str:
    """SHA-256 of the source files that make shards, on this machine."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(f"{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class RunInfo:
    """What all workers of a run share.

    Attributes:
        folder: Output folder of the shards.
        id: New in every run.
        device: Where networks run.
        code: `code_digest` of the driver.
    """

    folder: str
    id: str
    format: ShardFormat
    device: str
    code: str = field(default_factory=code_digest)


def _check_node(run_info: RunInfo) -> None:
    """Raises UserError on a node with other code than the driver, or that does not see its folder.

    Without the second check a worker might write to its own disk, and its shards would be lost.
    """
    host = socket.gethostname()
    if code_digest() != run_info.code:
        raise UserError(
            f"{host} runs another version of this package than the driver",
            "Install the same version on every node",
        )
    state, deadline = State(run_info.folder), time.monotonic() + VISIBLE_SECONDS
    while not state.has_run(run_info.id):
        if time.monotonic() > deadline:
            raise UserError(
                f"{host} does not see {run_info.folder} as the driver does: "
                "the plan of this run is not there",
                "Give an --out that all nodes share: a mounted folder or an object store",
            )
        time.sleep(0.2)


class ShardWorker:
    """A Ray Data actor: a row with a planned shard in, a row with its done record out.

    The step is made at the first shard and not in the constructor: Ray would silently restart an
    actor whose constructor dies, for ever. In a shard the journal counts that crash like any other.
    """

    def __init__(self, make_step: MakeStep, run_info: RunInfo) -> None:
        self.make_step, self.run_info = make_step, run_info
        self._step: Step | None = None
        self.state = State(run_info.folder)
        self.batch_size = 1
        self.failures = 0
        self.checked = False
        self.pace = Pace()

    def step(self) -> Step:
        """The step, made at the first call."""
        if self._step is None:
            self._step = self.make_step(self.run_info.device)
            self.batch_size = self._step.pairs_per_batch
        return self._step

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[str]]:
        """Makes the shard of a row. `done`: its done record as JSON, empty if a GPU failed;
        `broken` then names the GPU. Raises UserError and JobFailed."""
        results: dict[str, list[str]] = {"done": [], "broken": []}
        for row in rows["shard"]:
            try:
                done = json.dumps(self.run(PlannedShard.from_json(json.loads(row))).to_json())
                broken = ""
            except BrokenDevice as error:
                done, broken = "", json.dumps(asdict(error.device))
            except (DamagedShard, OSError) as error:
                # Here, since Ray adds words of its own, and an OSError loses its file on its way.
                raise explained(error) from None
            results["done"].append(done)
            results["broken"].append(broken)
        return results

    def run(self, shard: PlannedShard) -> Done:
        """Makes the shard and its done file. Raises BrokenDevice if the GPU is at fault."""
        started = time.monotonic()
        if not self.checked:
            _check_node(self.run_info)
            self.checked = True
        previous = self.state.journal(shard.name)
        self._check_device(previous)
        journal = open_journal(shard.name, self.run_info.id, previous)
        self.state.write_journal(journal)
        step = self._step_or_broken_device()  # if it cannot be made, before anything is written
        ready = time.monotonic()
        if isinstance(step, Prefetches):
            step.prefetch(shard.pairs)
        path = storage.join(self.run_info.folder, self.run_info.format.file(shard.name))
        expected = shard.existing_sha256
        is_as_written = expected is not None and storage.sha256(path) == expected
        existing = _ExistingSamples(self.run_info.format, path if is_as_written else None)
        rejects: list[Reject] = []
        with self.run_info.format.write(path) as (writer, written):
            for pair, outcome in self._outcomes(shard, journal, existing):
                if isinstance(outcome, RejectedPair):
                    rejects.append(_reject(pair, shard, outcome))
                    journal.rejected += 1
                else:
                    writer.add(pair.key, outcome)
                    journal.done += 1
                journal.seconds = round(time.monotonic() - ready, 3)
            journal.in_flight = []
            self.state.write_journal(journal)
        done = Done(
            shard.name,
            shard.count,
            shard.digest(),
            samples=written.samples,
            bytes=written.bytes,
            sha256=written.sha256,
            seconds=round(time.monotonic() - started, 3),
            start_seconds=round(ready - started, 3),
            rejects=tuple(rejects),
            index=written.index,
            gpu=gpu_model() if self.run_info.device != "cpu" else "",
            earlier_file_changed=expected is not None and not is_as_written,
        )
        self.state.write_done(done)
        return done

    def _check_device(self, previous: Journal | None) -> None:
        """Raises BrokenDevice if a GPU that failed before fails again, with no pair on it."""
        if previous is None or previous.run != self.run_info.id or not previous.device_fault:
            return
        if previous.device_faults + 1 >= DEVICE_FAULTS:
            raise BrokenDevice(previous.device_fault)
        step = self._step_or_broken_device()
        try:
            step.check_device()
        except Exception as error:
            if not self._is_broken_device(error):
                raise
            raise BrokenDevice(first_line(error)) from None

    def _step_or_broken_device(self) -> Step:
        """The step. Raises BrokenDevice if networks cannot even be loaded onto the GPU."""
        try:
            return self.step()
        except Exception as error:
            if not self._is_broken_device(error):
                raise
            raise BrokenDevice(first_line(error)) from None

    def _is_broken_device(self, error: Exception) -> bool:
        return self.run_info.device != "cpu" and devices.is_broken_device(error)

    def _outcomes(
        self, shard: PlannedShard, journal: Journal, existing: _ExistingSamples
    ) -> Iterator[tuple[Item, Sample | RejectedPair]]:
        """Every pair of the shard in order, each with its sample or its rejection."""
        step, in_progress = self.step(), deque[Batch]()
        # On a CPU the network itself takes all cores of a worker: one batch after the other.
        staged = step if self.run_info.device != "cpu" and isinstance(step, Staged) else None
        with nullcontext() if staged is None else stage_threads() as threads:
            items = read_ahead(shard.items(), threads) if threads else shard.items()
            batches = self._noted(self._batches(items, journal, existing), journal, in_progress)
            if staged and threads:
                processed = overlap(batches, staged, threads)
            else:
                processed = map(self._in_turn, filter(None, batches))
            for batch in processed:
                in_progress.popleft()
                yield from zip(batch.items, self._results(batch, journal), strict=True)

    def _in_turn(self, batch: Batch) -> Batch:
        """The batch with its outcomes or its error, one stage after the other."""
        if batch.outcomes is None:
            began = time.monotonic()
            try:
                batch.outcomes = self.step()(batch.items)
                batch.seconds = time.monotonic() - began
            except Exception as error:
                batch.error = error
        return batch

    def _noted(
        self, batches: Iterable[Batch], journal: Journal, in_progress: deque[Batch]
    ) -> Iterator[Batch | None]:
        """The batches, each recorded in the journal before its pairs are touched.

        Args:
            in_progress: Those that were yielded and have no outcomes yet; the batches are added.
        """
        for together in self._recorded_together(batches):
            isolate = together[0].isolate
            if isolate:
                yield None
            touched = [batch for batch in together if batch.outcomes is None]
            if touched:
                named = (*in_progress, *touched)
                journal.in_flight = [item.key for batch in named for item in batch.items]
                with self.pace.writing():
                    self.state.write_journal(journal)
            for batch in together:
                in_progress.append(batch)
                yield batch
            if isolate:
                yield None

    def _recorded_together(self, batches: Iterable[Batch]) -> Iterator[list[Batch]]:
        """Batches whose pairs are recorded in the journal with one write."""
        together: list[Batch] = []
        for batch in batches:
            if batch.isolate and together:
                yield together
                together = []
            together.append(batch)
            pairs = sum(len(one.items) for one in together)
            if batch.isolate or pairs >= self.pace.pairs_per_journal_write:
                yield together
                together = []
        if together:
            yield together

    def _batches(
        self, items: Iterable[Item], journal: Journal, existing: _ExistingSamples
    ) -> Iterator[Batch]:
        """The shard in order: batches, pairs that have crashed before, and pairs without work."""
        waiting: list[Item] = []
        for pair in items:
            key = pair.key
            crashes, sample = journal.crashes_of(key), existing.take(key)
            if sample is None and crashes == 0:
                waiting.append(pair)
                if len(waiting) < self.batch_size:
                    continue
            if waiting:
                yield Batch(waiting)
            if sample is not None:
                yield Batch([pair], [sample])
            elif crashes >= CRASHES_OF_A_PAIR:
                detail = f"{crashes} workers died with it in flight"
                if journal.last_device_fault:
                    detail += f", the last with {journal.last_device_fault}"
                yield Batch([pair], [RejectedPair(Reason.KILLED_ITS_PROCESS, detail)])
            elif crashes:
                yield Batch([pair], isolate=True)
            waiting = []
        if waiting:
            yield Batch(waiting)

    def _results(self, batch: Batch, journal: Journal) -> Sequence[Sample | RejectedPair]:
        """The outcomes of a batch that comes back; those of its parts if it failed."""
        if batch.seconds is not None:
            self.pace.worked(batch.seconds / len(batch.items))
        failure, batch.error = batch.error, None
        if failure is None:
            assert batch.outcomes is not None
            if batch.seconds is not None:
                self.failures = 0
            return batch.outcomes
        if isinstance(failure, NO_PAIRS_FAULT):
            raise failure
        return self._recover(journal, batch.items, failure)

    def _process(self, pairs: Sequence[Item], journal: Journal) -> list[Sample | RejectedPair]:
        """The step's results; pairs that do not fit or fail are tried in smaller parts."""
        try:
            results = self.step()(pairs)
        except NO_PAIRS_FAULT:
            raise
        except Exception as error:
            failure = error
        else:
            self.failures = 0
            return results
        return self._recover(journal, pairs, failure)

    def _recover(
        self, journal: Journal, pairs: Sequence[Item], failure: Exception
    ) -> list[Sample | RejectedPair]:
        """The results of pairs on which the step failed, by trying them in smaller parts.

        It is called outside the exception handler, whose frames would hold the tensors of the
        failed batch.
        """
        if self._is_broken_device(failure):
            self._end_process(journal, failure)
        out_of_memory = devices.is_out_of_memory(failure)
        if out_of_memory:
            failure.__traceback__ = None
            self.step().free_memory()
        if len(pairs) > 1:
            part_size = (len(pairs) + 1) // 2 if out_of_memory else 1
            parts = [pairs[i : i + part_size] for i in range(0, len(pairs), part_size)]
            results = [result for part in parts for result in self._process(part, journal)]
            # A pair that does not even fit alone says nothing of how many others fit together.
            if out_of_memory and not any(map(_is_too_large, results)):
                self.batch_size = min(self.batch_size, part_size)
            return results
        if out_of_memory:
            return [RejectedPair(Reason.OUT_OF_MEMORY, first_line(failure))]
        return [self._failed(pairs[0], failure)]

    def _end_process(self, journal: Journal, error: Exception) -> None:
        """Ends the worker: on a failed GPU every later call fails too. Ray restarts it."""
        journal.device_fault = first_line(error)
        self.state.write_journal(journal)
        os._exit(1)

    def _failed(self, pair: Item, error: Exception) -> RejectedPair:
        self.failures += 1
        self.state.write_failure(pair.key, "".join(traceback.format_exception(error)))
        description = f"{type(error).__name__}: {error}"
        if self.failures >= FAILURES_IN_A_ROW:
            raise JobFailed(
                f"{self.failures} pairs failed one after the other, the last, {pair.key}, "
                f"with {description}"
            ) from error
        where = traceback.extract_tb(error.__traceback__)[-1]
        return RejectedPair(Reason.FAILED, f"{description} ({where.filename}:{where.lineno})")


class _ExistingSamples:
    """The samples of a shard's present file, which are taken one by one, in order."""

    def __init__(self, format: ShardFormat, path: str | None) -> None:
        self.samples = format.read(path) if path is not None else iter(())
        self.next = next(self.samples, None)

    def take(self, key: str) -> Sample | None:
        """The sample of `key` if it is the next one in the file."""
        if self.next is None or self.next[0] != key:
            return None
        sample = self.next[1]
        self.next = next(self.samples, None)
        return sample


def _is_too_large(result: Sample | RejectedPair) -> bool:
    return isinstance(result, RejectedPair) and result.reason is Reason.OUT_OF_MEMORY


def _reject(pair: Item, shard: PlannedShard, error: RejectedPair) -> Reject:
    message = encodable(error.message.replace("\x00", ""))[:500]
    return Reject(
        key=pair.key,
        id=encodable(pair.id),
        split=pair.split,
        kind=pair.kind,
        shard=shard.name,
        reason=error.reason.value,
        message=message,
    )


def explained(error: Exception) -> Exception:
    """An error of a file as the user sees it, with the file's name.

    Returns:
        UserError or JobFailed; an error that tells of no file as it is.
    """
    if isinstance(error, DamagedShard):
        # Without the file, as a job takes a shard of the right size for a whole one.
        remedy = "remove the file, then run the job that wrote it again"
        return UserError(str(error), f"Look closer with: cc-prep verify; {remedy}")
    if isinstance(error, FileNotFoundError):
        file = error.filename or str(error).rstrip(".")
        line = f"a worker met: {file}: {os.strerror(errno.ENOENT)}"
        return UserError(line, "Put it back, or run the job that wrote it again")
    if isinstance(error, OSError) and error.errno:
        file = f"{error.filename}: " if error.filename else ""
        return JobFailed(f"a worker met: {file}{os.strerror(error.errno)}")
    return error
