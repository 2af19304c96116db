"""Free resources of Ray, by node."""

from __future__ import annotations

import os
import time

import ray
from ray._private import state

from pipelines.cluster.pool import Resources

SETTLE_SECONDS = 10.0


def free_resources(occupied_gpus: float = 0.0) -> tuple[Resources, ...]:
    """Free resources of each node.

    It waits some seconds until everything is free, since a job that has just ended takes a moment
    to release its resources. occupied_gpus: number of GPUs that are not waited for, since broken
    ones are occupied on purpose.
    """
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
