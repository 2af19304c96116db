"""The frame around every step's job: preflight, lock, resume, run, account.

A step says what it makes (`Step`), under which settings, and about how large; everything that
decides whether work is lost or doubled stands here once.
"""

from __future__ import annotations

import contextlib
import errno
import re
import signal
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import JobFailed, StoreFailed, UserError
from cc_prep.formats import provenance, rejects, training_shards
from cc_prep.formats.shard_format import ShardFormat
from cc_prep.manifest import Manifest
from pipelines import engine
from pipelines.plan import AnyShard, remaining
from pipelines.progress import Watcher, amount
from pipelines.shard_worker import Job, Step
from pipelines.state import lock
from pipelines.state.journal import Done, State

# Beside the shards: temporary files of shards under way, the state folder, the report.
DISK_MARGIN = 1.1


@dataclass(frozen=True)
class Options:
    """What the command line says about a run without changing its result."""

    workers: int | None = None
    device: str = "auto"
    gpus_per_worker: float = 1.0
    max_rejects: float = 0.01
    retry_rejects: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class Request:
    """What a command asks of a step: which data, where to, how much of it."""

    manifest: Manifest
    out: str
    splits: Sequence[str]
    limit: int | None
    options: Options
    console: Console


@dataclass(frozen=True)
class Work:
    """A step's job: what to make, where, and what decides the bytes.

    make_step: builds the step inside a worker, given the device. settings: all that decides the
        bytes except the pairs. bytes_a_pair: an estimate for the preflight. memory: what a worker
        was measured to take, in words.
    """

    format: ShardFormat
    folder: str
    shards: Sequence[AnyShard]
    make_step: Callable[[str], Callable[[], Step]]
    settings: dict[str, Any]
    weights: dict[str, str]
    threads: int
    bytes_a_pair: int
    memory: str


@dataclass(frozen=True)
class Summary:
    """What lies in the folder after a run, over all runs into it."""

    folder: str
    planned: int
    samples: int
    rejected: int
    bytes: int
    seconds: float
    shards: int
    made_now: int

    def too_many_rejects(self, most: float) -> bool:
        return self.rejected > most * self.planned


def run(work: Work, options: Options, console: Console) -> Summary | None:
    """Brings the folder to what is planned; None for a dry run.

    Raises UserError before any work for what a user can mend, JobFailed when workers fail.
    """
    # What can be refused without Ray is refused at once.
    lock.refuse_if_held(work.folder)
    _check_same_settings(work)
    free = engine.start()
    try:
        pool = engine.size_pool(
            free, options.workers, work.threads, options.device, options.gpus_per_worker
        )
        _check_same_settings(work, pool.device)
        if options.dry_run:
            _print_plan(work, pool, console)
            return None
        with _writable(work.folder), lock.locked(work.folder), _interruptible():
            try:
                return _locked(work, options, pool, console)
            finally:
                engine.stop()  # the workers first: they may be at a file still
                storage.remove_temporaries(work.folder)
    finally:
        engine.stop()


def _locked(work: Work, options: Options, pool: engine.Pool, console: Console) -> Summary:
    state = State(work.folder)
    settings = {**work.settings, "device": pool.device}
    finished = _finished(work)
    todo = remaining(work.shards, finished, options.retry_rejects)
    _check_disk(work, todo)
    storage.remove_temporaries(work.folder)
    storage.remove_temporaries(state.folder)
    plan = {shard.name: shard.count for shard in work.shards}
    state.write_plan({**(state.plan() or {}), **plan})
    _account(work, settings, state)
    kept = len(work.shards) - len(todo)
    if kept:
        console.print(f"{kept} of {len(work.shards)} shards are done already", highlight=False)
    made = 0
    try:
        if todo:
            job = Job(work.folder, uuid.uuid4().hex, work.format)
            with Watcher(state, plan, console):
                for _ in engine.run(todo, work.make_step(pool.device), job, pool):
                    made += 1
    except KeyboardInterrupt:
        raise JobFailed(f"stopped; {_resumable(state, plan)}") from None
    except JobFailed as error:
        raise JobFailed(f"{error}; {_resumable(state, plan)}") from error
    finally:
        # On a full disk or without the store the first error is the one to show.
        with contextlib.suppress(OSError, StoreFailed):
            _account(work, settings, state)
    return _summary(work.folder, plan, state, made)


def _check_same_settings(work: Work, device: str | None = None) -> None:
    """Refuses to mix shards made in different ways in one folder; the device if it is known."""
    before = provenance.read(work.folder)
    if before is None:
        if _shard_files(work):
            raise UserError(
                f"{work.folder} has shards but no {provenance.FILE}", "Give another --out"
            )
        return
    made_on = before["settings"].get("device")
    settings = {**work.settings, "device": device or made_on}
    old = {"settings": before["settings"], "weights": before.get("weights", {})}
    new = {"settings": settings, "weights": work.weights}
    different = provenance.differences(old, new)
    if different:
        shown = "; ".join(d.removeprefix("settings.") for d in different[:5])
        raise UserError(
            f"{work.folder} was made with other settings ({shown})",
            "Use the same settings, or another --out",
        )


def _shard_files(work: Work) -> list[str]:
    pattern = re.compile(rf".+-\d{{6}}\.{work.format.extension}")
    return [name for name in storage.list_files(work.folder) if pattern.fullmatch(name)]


def _finished(work: Work) -> dict[str, Done]:
    """Done shards whose file is there in full; others are made again."""
    finished = {}
    for name, done in State(work.folder).done().items():
        try:
            place = storage.join(work.folder, work.format.file(name))
            whole = storage.size(place) == done.bytes
        except FileNotFoundError:
            whole = False
        if whole:
            finished[name] = done
    return finished


def _check_disk(work: Work, todo: Sequence[AnyShard]) -> None:
    there = storage.free_bytes(work.folder)
    need = int(DISK_MARGIN * work.bytes_a_pair * sum(shard.count for shard in todo))
    if there is not None and need > there:
        raise UserError(
            f"{work.folder}: about {amount(need)} needed, {amount(there)} free",
            "Free some space, give another --out, or take fewer pairs with --limit",
        )


def _account(work: Work, settings: dict[str, Any], state: State) -> None:
    """Writes provenance and rejects from what is done so far."""
    done, planned = state.done(), state.plan() or {}
    shards = {
        name: {
            "samples": d.samples,
            "rejected": len(d.rejects),
            "bytes": d.bytes,
            "sha256": d.sha256,
            "made_from": d.pairs_digest,
        }
        for name, d in done.items()
    }
    found = {
        "format": work.format.name,
        "format_version": work.format.version,
        "settings": settings,
        "weights": work.weights,
        "software": provenance.software(),
        "complete": shards.keys() >= planned.keys(),
        "planned": planned,
        "shards": shards,
    }
    provenance.write(work.folder, found)
    if work.format.indexed:
        training_shards.write_index(
            work.folder, {name: (d.offsets, d.bytes) for name, d in done.items()}
        )
    rejects.write(work.folder, [reject for d in done.values() for reject in d.rejects])


def _resumable(state: State, plan: dict[str, int]) -> str:
    done = len(state.done().keys() & plan.keys())
    return f"{done} of {len(plan)} shards are done, the same command resumes"


def _summary(folder: str, plan: dict[str, int], state: State, made: int) -> Summary:
    done = [d for name, d in state.done().items() if name in plan]
    return Summary(
        folder=folder,
        planned=sum(plan.values()),
        samples=sum(d.samples for d in done),
        rejected=sum(len(d.rejects) for d in done),
        bytes=sum(d.bytes for d in done),
        seconds=sum(d.seconds for d in done),
        shards=len(done),
        made_now=made,
    )


def _print_plan(work: Work, pool: engine.Pool, console: Console) -> None:
    pairs = sum(shard.count for shard in work.shards)
    largest = max(shard.count for shard in work.shards)
    finished = _finished(work)
    todo = [shard for shard in work.shards if shard.name not in finished]
    there = storage.free_bytes(work.folder)
    rows = {
        "output": work.folder,
        "pairs": f"{pairs:,} in {len(work.shards):,} shards of up to {largest}",
        "to do": f"{sum(s.count for s in todo):,} pairs in {len(todo):,} shards",
        "disk": f"about {amount(work.bytes_a_pair * pairs)}"
        + (f", {amount(there)} free" if there is not None else ""),
        "workers": f"{pool.workers} on {pool.device}, {work.threads} threads each",
        "memory": work.memory,
        "weights": ", ".join(f"{n} {d[:12]}" for n, d in work.weights.items()) or "none",
    }
    for name, value in rows.items():
        console.print(f"{name:8} {value}", highlight=False)
    console.print("nothing was written (--dry-run)", highlight=False)


@contextlib.contextmanager
def _writable(folder: str) -> Iterator[None]:
    """Turns what the output place refuses into a message."""
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


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends a job like Ctrl-C does: with its account written."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
