"""Runs planned shards on Ray Data: one shard is one row, one block, one call of a worker.

Ray's own checkpointing, error skipping and block splitting are not used; see docs/ray.md for why.
What makes a run resumable and exact is the plan, the atomic shard and its done file.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import ray
from ray.data import ActorPoolStrategy, DataContext
from rich.console import Console

from cc_prep.errors import JobFailed, UserError
from cc_prep.models.cpu.allocator import ONE_ARENA
from cc_prep.weights.download import cache_folder
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.step import MakeStep, Shard

LOG = cache_folder() / "ray.log"
CONNECT_SECONDS = 10.0
SETTLE_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 * 2**20

_ours = False  # whether `start` started or joined the Ray that there is


@dataclass(frozen=True)
class Resources:
    """What Ray has free."""

    cpus: int
    gpus: float


@dataclass(frozen=True)
class Pool:
    """The workers of a job: how many, and what each takes."""

    workers: int
    cpus: int
    gpus: float

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def start() -> Resources:
    """Starts a local Ray, or joins the cluster that `RAY_ADDRESS` names. Raises UserError.

    A Ray that this process has already is used, and left as it is by `stop`.
    """
    global _ours
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        _check_reachable(address)
        _divert_output()
        # Our blocks are plans and file names of some kilobytes, so a small object store will do.
        local = {} if address else {"object_store_memory": OBJECT_STORE_BYTES}
        _ours = True
        try:
            with _one_arena():
                ray.init(
                    address=address or "local",
                    include_dashboard=False if not address else None,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    **local,
                )
        except (ConnectionError, ValueError, RuntimeError) as error:
            stop()
            raise _unreachable(address, str(error).splitlines()[0]) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    return _free_resources()


@contextmanager
def _one_arena() -> Iterator[None]:
    """What is started meanwhile, and that is a local Ray's workers, has one arena a process."""
    old_values = {name: os.environ.get(name) for name in ONE_ARENA}
    os.environ.update(ONE_ARENA)
    try:
        yield
    finally:
        for name, value in old_values.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _free_resources() -> Resources:
    """What is free, once all is or some seconds have passed: a job that has just ended takes a
    moment to give back what it had."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        free, total = ray.available_resources(), ray.cluster_resources()
        busy = any(free.get(kind, 0) < total.get(kind, 0) for kind in ("CPU", "GPU"))
        if not busy or time.monotonic() > deadline:
            return Resources(int(free.get("CPU", 0)), float(free.get("GPU", 0)))
        time.sleep(0.1)


def _check_reachable(address: str | None) -> None:
    """Asks a cluster's port for a connection: Ray itself would wait for it for many minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _unreachable(address: str | None, reason: str) -> UserError:
    return UserError(
        f"no Ray at RAY_ADDRESS={address} ({reason})",
        "Start it, or unset it; if it wants a token, set RAY_AUTH_MODE=token",
    )


def stop() -> None:
    """Ends the local Ray that `start` started, or leaves the cluster that it joined."""
    global _ours
    if _ours:
        ray.shutdown()
        _ours = False
    _restore_output()


def messages() -> Console:
    """A console on standard error that Ray's own chatter does not reach."""
    return Console(file=os.fdopen(os.dup(2), "w", encoding="utf-8"))


_DIVERTED: dict[int, int] = {}


def _divert_output() -> None:
    """Sends both standard streams to a log: Ray writes to them whatever logging is set to."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        _DIVERTED[number] = os.dup(number)
        os.dup2(log, number)
    os.close(log)


def _restore_output() -> None:
    while _DIVERTED:
        number, saved = _DIVERTED.popitem()
        (sys.stdout if number == 1 else sys.stderr).flush()
        os.dup2(saved, number)
        os.close(saved)


def size_pool(
    free: Resources, workers: int | None, threads: int, device: str, share: float = 1.0
) -> Pool:
    """The pool for what is free. Raises UserError if more is asked for than there is.

    device: `auto` takes GPUs where there are some. share: of a GPU, for each worker. Default: as
    many workers as the GPUs hold, or one for every `threads` cores.
    """
    fits = int(free.gpus / share + 1e-6)
    if device == "gpu" and not fits:
        lack = "no free GPU" if share == 1 else f"less than {share:g} of a GPU free"
        raise UserError(f"--device gpu: Ray has {lack}", "Use --device cpu, or free one")
    if device == "gpu" or (device == "auto" and fits):
        count, most = workers or fits, fits
        unit = "GPUs" if share == 1 else f"shares of {share:g} GPU"
        pool = Pool(count, 1, share)
    else:
        count, most, unit = workers or max(1, free.cpus // threads), free.cpus, "CPUs"
        pool = Pool(count, min(threads, max(1, free.cpus // count)), 0)
    if count > most or count > free.cpus:
        most, unit = (free.cpus, "CPUs") if count > free.cpus else (most, unit)
        raise UserError(
            f"{count} workers ask for {count} {unit}, Ray has {most} free",
            f"Use --workers {most} or fewer" if most else "Wait until another job has ended",
        )
    return pool


def run(
    shards: Sequence[Shard], make_step: MakeStep, run_info: RunInfo, pool: Pool
) -> Iterator[str]:
    """Names of the shards as they are finished. Raises JobFailed with the worker's last error."""
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = None  # a block is never split: one row, one shard
    context.raise_original_map_exception = True
    # A shard may take an hour, and a cluster may keep us waiting: a worker that dies again and
    # again is ended by its journal, not by a clock.
    context.execution_no_progress_timeout_s = -1
    rows = [{"shard": json.dumps(shard.to_json())} for shard in shards]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        ShardWorker,
        fn_constructor_args=(make_step, run_info),
        batch_size=1,
        compute=ActorPoolStrategy(
            size=min(pool.workers, len(rows)), max_tasks_in_flight_per_actor=1
        ),
        num_cpus=pool.cpus,
        num_gpus=pool.gpus or None,
    )
    try:
        for row in results.iter_rows():
            yield row["shard"]
    except (ray.exceptions.RayError, JobFailed, UserError, OSError) as error:
        _end_executor(error)
        raise _cause(error) from error
    except KeyboardInterrupt as error:
        _end_executor(error)
        raise


def _end_executor(error: BaseException) -> None:
    """Ends Ray's executor and its workers, which the error's frames hold.

    Collected after Ray itself it prints a traceback; in a Ray that is not ours it keeps its CPUs.
    """
    traceback.clear_frames(error.__traceback__)


def _cause(error: BaseException) -> Exception:
    """The worker's own error under Ray's wrappings."""
    while (cause := getattr(error, "cause", None)) is not None:  # RayTaskError, RayActorError
        error = cause
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError) and error.errno:
        return JobFailed(f"a worker met: {os.strerror(error.errno)}")
    lines = str(error).strip().splitlines() or ["no message"]
    if isinstance(error, JobFailed):
        return JobFailed(lines[0])  # Ray adds lines of its own to it
    return JobFailed(f"{type(error).__name__}: {lines[0]} (Ray's log: {LOG})")
