"""Runs planned shards on Ray Data: one shard is one row, one block, one call of a worker.

Ray's own writing of tars and checkpointing are not used, since they leave truncated tars under
their final names and lose or duplicate samples; nor is its skipping of errors, which drops whole
blocks.
The plan, atomic shards and their done files make a run resumable and exact.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import ray
from ray.data import ActorPoolStrategy, DataContext

from cc_prep.devices import ONE_ARENA
from cc_prep.errors import JobFailed, UserError, first_line, named_line
from cc_prep.steps.base import MakeStep
from pipelines import timing
from pipelines.cluster.broken import BrokenDevices, release
from pipelines.cluster.pool import Pool, Resources, free_resources
from pipelines.cluster.session import (
    LOG,
    divert_output,
    last_word,
    restore_output,
    temporary_folder,
)
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import PlannedShard
from pipelines.state.device import Device
from pipelines.state.journal import Done
from pipelines.timing import Trial

CONNECT_SECONDS = 10.0
OBJECT_STORE_BYTES = 128 * 2**20
# Workers of a dry run that try some pairs at the same time, since they may slow each other down.
TRIALS = 16
TRIAL_MINUTES = 3.0
NICENESS = "RAY_worker_niceness"  # that Ray's workers add to what they inherit

_session = ExitStack()  # what `start` began and `stop` ends


def start() -> tuple[Resources, ...]:
    """Starts a local Ray, or joins the cluster that `RAY_ADDRESS` names; returns free resources.

    Raises UserError for an unreachable cluster, JobFailed if a local Ray does not start. If this
    process already has a Ray, it is used, and `stop` does not end it.
    """
    address = os.environ.get("RAY_ADDRESS")
    try:
        if not ray.is_initialized():
            _check_reachable(address)
            _initialise(address)
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        return free_resources()
    except BaseException as error:
        stop()  # first of all, so that whatever is said next is seen
        if not isinstance(error, Exception) or isinstance(error, UserError):
            raise
        raise _not_started(address, first_line(error)) from None


def _initialise(address: str | None) -> None:
    """Starts Ray or joins a cluster, with the output of this process diverted."""
    _session.enter_context(last_word())
    divert_output()
    # Our blocks are plans and file names of some kilobytes, so a small object store will do.
    local: dict[str, Any] = {}
    if not address:
        folder = _session.enter_context(temporary_folder())
        local = {"object_store_memory": OBJECT_STORE_BYTES, "_temp_dir": folder}
    _session.callback(ray.shutdown)
    with _environment_of_workers():
        ray.init(
            address=address or "local",
            include_dashboard=False if not address else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **local,
        )


@contextmanager
def _environment_of_workers() -> Iterator[None]:
    """Within the block, the workers of a local Ray get what jobs are fastest and smallest with.

    They have one malloc arena each, and the niceness of this process: with Ray's own of 15 they
    stand still beside any other work, while the job's estimate counts on them.
    """
    values = {**ONE_ARENA, NICENESS: os.environ.get(NICENESS, "0")}
    old_values = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old_values.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _check_reachable(address: str | None) -> None:
    """Tries to connect to a cluster's port: Ray itself would wait for many minutes.

    Raises UserError, also for an address of Ray Client, which does not tell the free resources of
    each node.
    """
    if (address or "").startswith("ray://"):
        raise UserError(
            f"RAY_ADDRESS={address}: jobs do not run through Ray Client",
            "Give HOST:PORT of the head node, such as 10.0.0.1:6379, on a node of the cluster",
        )
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise _unreachable(address, error.strerror or str(error)) from None


def _not_started(address: str | None, reason: str) -> Exception:
    """The error for a Ray that did not start; a busy machine may need longer than Ray waits."""
    if address is not None:
        return _unreachable(address, reason)
    return JobFailed(
        f"Ray did not start ({reason}). The same command tries again; Ray's output is in {LOG}"
    )


def _unreachable(address: str | None, reason: str) -> UserError:
    return UserError(
        f"no Ray at RAY_ADDRESS={address} ({reason})",
        "Start it, or unset it; if it wants a token, set RAY_AUTH_MODE=token",
    )


def stop() -> None:
    """Ends the local Ray that `start` started, or leaves the cluster that it joined."""
    if ray.is_initialized():
        release()
    _session.close()
    restore_output()


def run(
    shards: Sequence[PlannedShard], make_step: MakeStep, run_info: RunInfo, pool: Pool
) -> Iterator[Done]:
    """The records of the shards as they are finished.

    Raises JobFailed with the worker's last error, and BrokenDevices if a worker's GPU failed.
    """
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
        **_environment(pool),
    )
    try:
        # Without prefetching, which holds a finished shard back until the next one is finished.
        for block in results.iter_batches(
            batch_size=None, prefetch_batches=0, batch_format="pyarrow"
        ):
            for row in block.to_pylist():
                if row["broken"]:
                    raise BrokenDevices(Device(**json.loads(row["broken"])))
                yield Done.from_json(row["done"])
    except BrokenDevices as error:
        _clear_frames(error)
        raise
    except (ray.exceptions.RayError, JobFailed, UserError, OSError) as error:
        _clear_frames(error)
        raise _cause(error) from error
    except KeyboardInterrupt as error:
        _clear_frames(error)
        raise


def try_out(
    shards: Sequence[PlannedShard], make_step: MakeStep, pool: Pool
) -> tuple[list[Trial], float]:
    """Some pairs of the shards, tried in as many workers as the job would have, at most TRIALS.

    Returns:
        What each worker that answered in time took, and the seconds that its process took to start.

    Raises:
        JobFailed: With the error of the step, UserError if it is one.
    """
    count = min(pool.workers, len(shards), TRIALS)
    task = ray.remote(
        num_cpus=pool.cpus, num_gpus=pool.gpus or None, max_calls=1, max_retries=0,
        **_environment(pool),
    )(timing.try_out)  # fmt: skip
    began = time.monotonic()
    running = [task.remote(shard, make_step, pool.device) for shard in shards[:count]]
    finished: list[Any] = []
    last, deadline = began, began + TRIAL_MINUTES * 60
    while running and (left := deadline - time.monotonic()) > 0:
        done, running = ray.wait(running, num_returns=1, timeout=left)
        if done:
            finished, last = [*finished, *done], time.monotonic()
    for one in running:
        ray.cancel(one, force=True)
    try:
        trials = ray.get(finished)
    except (ray.exceptions.RayError, JobFailed, UserError, OSError) as error:
        raise _cause(error) from error
    tried = max((trial.all_seconds for trial in trials), default=0.0)
    return trials, max(0.0, last - began - tried)


def _environment(pool: Pool) -> dict[str, Any]:
    """Options for workers of a joined cluster; `start` sets them for a Ray of our own."""
    if pool.gpus or not os.environ.get("RAY_ADDRESS"):
        return {}
    return {"runtime_env": {"env_vars": ONE_ARENA}}


def _clear_frames(error: BaseException) -> None:
    """Ends Ray's executor and its workers, by clearing the error's frames, which hold them.

    If the executor outlived Ray, it would print a traceback; in a Ray that is not ours, it would
    keep its CPUs.
    """
    traceback.clear_frames(error.__traceback__)


def _cause(error: BaseException) -> Exception:
    """The worker's own error, without Ray's wrappers."""
    while (cause := getattr(error, "cause", None)) is not None:  # RayTaskError, RayActorError
        error = cause
    if isinstance(error, UserError):
        return error
    if isinstance(error, JobFailed):
        return JobFailed(str(error).partition("\n")[0])  # Ray adds lines of its own to it
    return JobFailed(f"{named_line(error)} (Ray's log: {LOG})")
