"""Runs the job of any step: preflight checks, lock, resume, provenance, summary.

A step describes its output (`Step`), the settings, and the estimated size; all code that decides
whether work is lost or done twice is in this module.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import JobFailed, StoreFailed, UserError
from cc_prep.formats import provenance
from cc_prep.formats.tar import ShardFormat
from cc_prep.manifest import Manifest
from cc_prep.steps.base import MakeStep
from cc_prep.storage import outputs
from cc_prep.terminal import interruptible
from pipelines import fingerprint, timing
from pipelines.cluster.broken import BrokenDevices, without_devices
from pipelines.cluster.pool import Pool, may_grow, size_pool
from pipelines.progress import Watcher, amount
from pipelines.shard_worker import RunInfo
from pipelines.shards import PlannedShard, remaining
from pipelines.state import lock, sources
from pipelines.state.account import Account, check_all_came_back
from pipelines.state.journal import Done, State

# Beside the shards: temporary files of shards under way, the state folder, the report.
DISK_MARGIN = 1.1


@dataclass(frozen=True)
class Options:
    """Options of a run that do not change its result."""

    workers: int | None = None
    device: str = "auto"
    gpus_per_worker: float = 1.0
    max_rejects: float = 0.01
    retry_rejects: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Request:
    """A command's request to a step: the data, its output folder, and how much to make."""

    manifest: Manifest
    out: str
    splits: Sequence[str]
    limit: int | None
    options: Options
    console: Console


@dataclass(frozen=True)
class JobSpec:
    """A step's job: its output, the folder, and the settings that decide the bytes.

    Attributes:
        make_step: Builds the step inside a worker, given the device.
        settings: All that decides the bytes except the pairs.
        bytes_a_pair: An estimate for the preflight.
        memory: The measured memory of a worker, in words.
        weight_files: See `provenance`.
        has_network: Whether the workers run a network; if not, they take no GPU, and the bytes do
            not depend on the device.
        data: See `sources`.
    """

    format: ShardFormat
    folder: str
    shards: Sequence[PlannedShard]
    make_step: MakeStep
    settings: dict[str, Any]
    weights: dict[str, str]
    threads: int
    bytes_a_pair: int
    memory: str
    weight_files: dict[str, str] = field(default_factory=dict)
    has_network: bool = True
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """The content of the folder after a run, in total over all runs into it."""

    folder: str
    planned: int
    samples: int
    rejected: int
    bytes: int
    seconds: float
    shards: int
    made_now: int

    def too_many_rejects(self, most: float) -> bool:
        return self.rejected / self.planned > most


def run(spec: JobSpec, options: Options, console: Console) -> Summary | None:
    """Makes all planned shards that the folder lacks; None for a dry run.

    Raises UserError before any work for mistakes that a user can fix, JobFailed if workers fail.
    """
    if not spec.has_network:  # nothing that a GPU would make faster
        options = replace(options, device="cpu")
    began = time.monotonic()  # what comes now, the job does too before its first pair
    # What can be refused without Ray is refused at once.
    lock.refuse_if_held(spec.folder)
    _check_same_settings(spec)
    _check_same_data(spec, options)
    from pipelines import engine  # here, since importing Ray takes seconds too

    try:
        pool = size_pool(
            engine.start(),
            options.workers,
            spec.threads,
            options.device,
            options.gpus_per_worker,
            grows=may_grow(),
        )
        _check_same_settings(spec, pool.device)
        if options.dry_run:
            _print_plan(spec, options, pool, console, time.monotonic() - began)
            return None
        with (
            _warnings_on(console),
            _writable(spec.folder),
            lock.locked(spec.folder, _end_this_process) as held,
            interruptible(),
        ):
            try:
                return _locked(spec, options, pool, console, held)
            finally:
                engine.stop()  # the workers first: they may be at a file still
                if not held.stolen:
                    storage.remove_temporaries(spec.folder)
    finally:
        engine.stop()


@contextlib.contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    """Shows warnings of ours, such as of a store that fails: standard error is Ray's meanwhile."""
    log, handler = logging.getLogger("cc_prep"), logging.StreamHandler(console.file)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _locked(
    spec: JobSpec, options: Options, pool: Pool, console: Console, held: lock.Held
) -> Summary:
    state = State(spec.folder)
    plan = _pairs_by_shard(spec)
    account = Account(spec.format, spec.folder, plan)
    todo = _todo(spec, account, options)
    account.make_again(shard.name for shard in todo)
    _check_disk(spec, todo)
    storage.remove_temporaries(spec.folder)
    storage.remove_temporaries(state.folder)
    state.remove_journals(account.whole.keys() & plan.keys())
    planned = {**(state.plan() or {}), **plan}
    record = {
        "settings": {**spec.settings, "device": pool.device},
        "weights": spec.weights,
        "weight_files": spec.weight_files,
        **_data(spec, planned, todo, console),
    }
    state.write_plan(planned)
    account.write(planned, record)
    if note := _excluded(spec):
        console.print(f"excluded: {note}")
    if done := len(plan) - len(todo):
        console.print(f"{done} of {len(plan)} shards are done already")
    if again := sum(_has_new_input(shard, account.finished.get(shard.name)) for shard in todo):
        console.print(
            f"{again} of {len(plan)} shards are made again, since what they are made from changed"
        )
    try:
        with _finally_write(lambda: None if held.stolen else account.write(planned, record)):
            if todo:
                with Watcher(state, plan, console, account.whole, pool.workers):
                    _run_workers(spec, todo, account, pool, console)
    except KeyboardInterrupt:
        if held.stolen:
            raise JobFailed(
                f"{spec.folder}: this process was silent for so long that {held.taken_by} took over"
            ) from None
        raise JobFailed(f"stopped; {_resumable(account, plan)}") from None
    except JobFailed as error:
        raise JobFailed(f"{error}; {_resumable(account, plan)}") from error
    except UserError as error:  # of a worker
        remedies = filter(None, (error.remedy, _resumable(account, plan)))
        raise type(error)(error.what, "; ".join(remedies)) from error
    return _summary(spec.folder, plan, account, len(todo))


@contextlib.contextmanager
def _finally_write(write: Callable[[], None]) -> Iterator[None]:
    """Calls `write` after the block, also after an error there, which stays the one to show.

    Raises what `write` raises, but after an error of the block.
    """
    try:
        yield
    except BaseException:
        # A disk that is full, or a store that fails, often fails here once more.
        with contextlib.suppress(OSError, StoreFailed, UserError):
            write()
        raise
    write()


def _data(
    spec: JobSpec, planned: Mapping[str, int], todo: Sequence[PlannedShard], console: Console
) -> dict[str, Any]:
    """The entry `data` of the provenance. Prints a note if it differs from earlier runs."""
    old = sources.recorded_in(provenance.read(spec.folder))
    sources.note_other_splits(planned, spec.data, console)
    if not todo:
        return {sources.KEY: {**old, "splits": spec.data.get("splits", [])}} if old else {}
    sources.note_other_root(spec.folder, old, spec.data, console)
    data = sources.joined(old, spec.data, {shard.split for shard in spec.shards})
    return {sources.KEY: data} if data else {}


def _pairs_by_shard(spec: JobSpec) -> dict[str, int]:
    return {shard.name: shard.count for shard in spec.shards}


def _todo(spec: JobSpec, account: Account, options: Options) -> list[PlannedShard]:
    """What is left to make. Raises UserError, which says how much larger or smaller the data is."""
    try:
        return remaining(spec.shards, account.finished, options.retry_rejects)
    except UserError as error:
        old = sources.recorded_in(provenance.read(spec.folder))
        what = "; ".join([error.what, *sources.other_counts(old, spec.data)])
        raise UserError(what, error.remedy) from None


def _has_new_input(shard: PlannedShard, done: Done | None) -> bool:
    """Whether a finished shard has as many pairs as are planned, but others."""
    return done is not None and done.pairs == shard.count and done.input_digest != shard.digest()


def _run_workers(
    spec: JobSpec, todo: Sequence[PlannedShard], account: Account, pool: Pool, console: Console
) -> None:
    """Lets the workers make the shards, without devices that turn out broken. Raises JobFailed."""
    from pipelines import engine

    state, left = State(spec.folder), {shard.name: shard for shard in todo}
    returned = set[str]()
    while left:
        run_info = RunInfo(spec.folder, uuid.uuid4().hex, spec.format, pool.device)
        state.write_run(run_info.id)
        try:
            for done in engine.run(list(left.values()), spec.make_step, run_info, pool):
                account.add(done)
                if done.earlier_file_changed:
                    console.print(
                        f"{spec.format.file(done.shard)} was not as it was written (another "
                        "SHA-256): nothing of it was kept, and all its pairs were made again"
                    )
                returned.add(done.shard)
                left.pop(done.shard, None)
            break
        except BrokenDevices as error:
            console.print(f"{error}; the job continues without it")
            pool = without_devices(pool, error)
        finally:
            with contextlib.suppress(OSError, StoreFailed, UserError):
                state.remove_run(run_info.id)
    check_all_came_back({shard.name for shard in todo}, returned)


def _check_same_settings(spec: JobSpec, device: str | None = None) -> None:
    """Refuses to mix shards of different settings in one folder.

    Args:
        device: Checked as well, if it is known.
    """
    record = provenance.read(spec.folder)
    if record is None:
        if _shard_files(spec):
            raise UserError(
                f"{spec.folder} has shards but no {provenance.FILE}", "Give another --out"
            )
        return
    if device is None:  # once: it digests pairs
        splits = spec.data.get("splits", ())
        sources.check_not_renamed(spec.folder, record, spec.shards, splits)
    old = {**record["settings"], "weights": record.get("weights", {})}
    if device is None or not spec.has_network:
        device = record["settings"].get("device")
    new = {**spec.settings, "device": device, "weights": spec.weights}
    fingerprint.check_same_settings(spec.folder, old, new)
    sources.check_same(
        spec.folder,
        sources.recorded_in(record),
        spec.data.get("settings", {}),
        {shard.split for shard in spec.shards},
    )


def _check_same_data(spec: JobSpec, options: Options) -> None:
    """Refuses pairs that changed, where the provenance tells of some.

    What is finished is read for it only then: a store takes its time over many small files.
    """
    shards = (provenance.read(spec.folder) or {}).get("shards", {})
    recorded = {
        name: Done(
            name,
            one.get("samples", 0) + one.get("rejected", 0),
            one.get("input_digest", ""),
            samples=0,
            bytes=0,
            sha256="",
            seconds=0.0,
        )
        for name, one in shards.items()
    }
    try:
        remaining(spec.shards, recorded, retry_rejects=False)
    except UserError:
        _todo(spec, Account(spec.format, spec.folder, _pairs_by_shard(spec)), options)


def _shard_files(spec: JobSpec) -> list[str]:
    pattern = re.compile(rf".+-\d{{6}}\.{spec.format.extension}")
    return [name for name in storage.list_files(spec.folder) if pattern.fullmatch(name)]


def _check_disk(spec: JobSpec, todo: Sequence[PlannedShard]) -> None:
    free = storage.free_bytes(spec.folder)
    needed = int(DISK_MARGIN * spec.bytes_a_pair * sum(shard.count for shard in todo))
    if free is not None and needed > free:
        raise UserError(
            f"{spec.folder}: about {amount(needed)} needed, {amount(free)} free",
            "Free some space, give another --out, or take fewer pairs with --limit",
        )


def _resumable(account: Account, plan: dict[str, int]) -> str:
    done = len(account.whole.keys() & plan.keys())
    return f"{done} of {len(plan)} shards are done, the same command resumes"


def _summary(folder: str, plan: dict[str, int], account: Account, shards_now: int) -> Summary:
    finished = [done for name, done in account.finished.items() if name in plan]
    return Summary(
        folder=folder,
        planned=sum(plan.values()),
        samples=sum(done.samples for done in finished),
        rejected=sum(len(done.rejects) for done in finished),
        bytes=sum(done.bytes for done in finished),
        seconds=sum(done.seconds for done in finished),
        shards=len(finished),
        made_now=shards_now,
    )


def _print_plan(
    spec: JobSpec, options: Options, pool: Pool, console: Console, ray_seconds: float
) -> None:
    _try_folder(spec.folder)
    account = Account(spec.format, spec.folder, _pairs_by_shard(spec))
    todo = _todo(spec, account, options)
    _check_disk(spec, todo)
    pairs = sum(shard.count for shard in spec.shards)
    largest = max(shard.count for shard in spec.shards)
    of_shard = f", {amount(spec.bytes_a_pair * largest)} a shard" if len(spec.shards) > 1 else ""
    free = storage.free_bytes(spec.folder)
    rows = {
        "output": spec.folder,
        "pairs": f"{pairs:,} in {len(spec.shards):,} shards of up to {largest}",
        "to do": f"{sum(s.count for s in todo):,} pairs in {len(todo):,} shards",
        "disk": f"about {amount(spec.bytes_a_pair * pairs)}{of_shard}"
        + (f", {amount(free)} free" if free is not None else ""),
        "workers": f"{pool.workers} on {pool.device}, {spec.threads} threads each",
        "memory": spec.memory,
        "weights": ", ".join(f"{n} {d[:12]}" for n, d in spec.weights.items()) or "none",
    }
    if note := _excluded(spec):
        rows["excluded"] = note
    for name, value in rows.items():
        console.print(f"{name:8} {value}")
    if todo:
        console.print("trying some pairs, to tell how long the job takes")
        console.print(f"{'time':8} {_time(spec, todo, pool, ray_seconds)}")
    console.print("nothing was written (--dry-run)")


def _try_folder(folder: str) -> None:
    """Raises UserError where nothing can be written, as a job would; it leaves nothing behind."""
    if not storage.is_remote(folder):
        outputs.check_folder(folder)
        return
    with _writable(folder):  # a store tells what is allowed only when it is asked to do it
        probe = storage.join(folder, f".{uuid.uuid4().hex[:12]}{storage.TEMPORARY_SUFFIX}")
        storage.create_json(probe, {})
        storage.remove(probe)


def _excluded(spec: JobSpec) -> str:
    """A note on how many pairs are excluded, and by which file; empty if there are none."""
    excluded = spec.settings.get("exclude")
    if not excluded:
        return ""
    return f"{sum(excluded['pairs'].values()):,} pairs of the data, by {excluded['file']}"


def _time(spec: JobSpec, todo: Sequence[PlannedShard], pool: Pool, ray_seconds: float) -> str:
    """The estimated time of the job, or why it is not known."""
    from pipelines import engine

    try:
        trials, starting = engine.try_out(todo, spec.make_step, pool)
    except JobFailed as error:  # of a pair perhaps, which the job would reject
        return f"not known: {error}"
    if not trials:
        return f"not known: no worker made a pair within {engine.TRIAL_MINUTES:g} minutes"
    left = [shard.count for shard in todo]
    return timing.in_words(trials, ray_seconds + starting, left, min(pool.workers, len(todo)))


@contextlib.contextmanager
def _writable(folder: str) -> Iterator[None]:
    """Turns errors of the output folder into a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"{folder}: cannot write there ({error.strerror})", "Give another --out"
            ) from None
        if error.errno == errno.ENOSPC:
            raise JobFailed(
                f"{folder}: the disk is full; free some space and run it again"
            ) from None
        raise


def _end_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
