"""The size of a job's pool: the workers, the resources of each, and what Ray has free."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cc_prep.errors import UserError
from cc_prep.words import counted

SETTLE_SECONDS = 10.0
ROUNDING = 1e-6  # shares are floats: three of a third are a whole


@dataclass(frozen=True)
class Resources:
    """Free resources of a node."""

    cpus: int
    gpus: float


@dataclass(frozen=True)
class Pool:
    """The workers of a job: their number, and the resources of each."""

    workers: int
    cpus: int
    gpus: float

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


def size_pool(
    nodes: Sequence[Resources],
    workers: int | None,
    threads: int,
    device: str,
    share: float = 1.0,
    grows: bool = False,
) -> Pool:
    """The pool that fits the free resources. Raises UserError if more is requested than is free.

    A worker takes all its resources from one node, and its share of a GPU from one GPU.

    Args:
        workers: Default: as many as the GPUs hold, or one for every `threads` cores of a node.
        device: `auto` uses GPUs if there are any.
        share: Of a GPU, for each worker.
        grows: Whether the cluster may start nodes on demand; then `workers` is not checked.
    """
    fits = sum(min(_shares(node.gpus, share), node.cpus) for node in nodes)
    shares = gpu_shares(nodes, share)
    believed = workers is not None and grows
    if device == "gpu" and not shares and not believed:
        lack = "no free GPU" if share == 1 else f"less than {share:g} of a GPU free"
        raise UserError(f"--device gpu: Ray has {lack}", "Use --device cpu, or free one")
    if device == "gpu" or (device == "auto" and shares):
        count, most = workers or max(1, fits), fits
        unit = "CPUs" if fits < shares else _unit(share)
        pool = Pool(count, 1, share)
    else:
        most, unit = sum(node.cpus for node in nodes), "CPUs"
        count = workers or max(1, sum(node.cpus // threads for node in nodes))
        # Nodes that are yet to start are asked for with all the cores that the workers use.
        cpus = threads if count > most else _cpus_of_each(nodes, count, threads)
        pool = Pool(count, cpus, 0)
    if count > most and not believed:
        remedy = f"Use --workers {most} or fewer" if most else (
            "Wait until another job has ended; on a cluster that starts nodes when asked, say how "
            "many with --workers"
        )  # fmt: skip
        need = f"{counted(count, 'worker')} would need {count:,}"
        raise UserError(f"Ray has {most:,} {unit} free, {need}", remedy)
    return pool


def gpu_shares(nodes: Sequence[Resources], share: float) -> int:
    """Number of free shares of a GPU."""
    return sum(_shares(node.gpus, share) for node in nodes)


def _shares(gpus: float, share: float) -> int:
    """Number of workers on a node's GPUs; each takes a share of one GPU, or several whole ones."""
    if share > 1:
        return int(gpus / share + ROUNDING)
    whole = int(gpus + ROUNDING)
    # What other jobs left of GPUs is counted as parts of one.
    rest = max(0.0, gpus - whole)
    return whole * int(1 / share + ROUNDING) + int(rest / share + ROUNDING)


def _cpus_of_each(nodes: Sequence[Resources], count: int, threads: int) -> int:
    """The largest number of cores a worker, at most `threads`, with which `count` workers fit."""
    for cpus in range(threads, 1, -1):
        if sum(node.cpus // cpus for node in nodes) >= count:
            return cpus
    return 1


def _unit(share: float) -> str:
    return "GPUs" if share == 1 else f"shares of {share:g} GPU"


def free_resources(occupied_gpus: float = 0.0) -> tuple[Resources, ...]:
    """Free resources of each node.

    It waits some seconds until everything is free, since a job that has just ended takes a moment
    to release its resources.

    Args:
        occupied_gpus: Number of GPUs that are not waited for, since broken ones are occupied on
            purpose.
    """
    import ray  # here, so that a pool is sized without Ray
    from ray._private import state

    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        free, total = ray.available_resources(), ray.cluster_resources()
        expected = {"CPU": total.get("CPU", 0), "GPU": total.get("GPU", 0) - occupied_gpus}
        busy = any(free.get(kind, 0) < count - 1e-4 for kind, count in expected.items())
        if not busy or time.monotonic() > deadline:
            return tuple(
                Resources(int(node.get("CPU", 0)), float(node.get("GPU", 0)))
                for node in state.available_resources_per_node().values()
            )
        time.sleep(0.1)


def may_grow() -> bool:
    """Whether nodes may be added: true for a cluster that was joined, false for a local Ray.

    Ray has no interface that tells whether a cluster starts nodes by itself.
    """
    return bool(os.environ.get("RAY_ADDRESS"))
