"""Keeps Ray from assigning broken GPUs again: Ray itself has no list of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cc_prep.errors import JobFailed
from pipelines.cluster.pool import Pool, free_resources, gpu_shares
from pipelines.state.device import Device, this_device

PLACE_SECONDS = 60.0

_occupied: list[tuple[Any, float]] = []  # actors, which end with these, and their share of a GPU


class BrokenDevices(Exception):
    """A worker gave its shard back, because its GPU does not work."""

    def __init__(self, device: Device) -> None:
        super().__init__(f"broken: {device}")
        self.device = device


class _Occupant:
    """Holds a share of a GPU and does nothing with it."""

    def where(self) -> tuple[str, str]:
        device = this_device()
        return device.host, device.gpus


def without_devices(pool: Pool, broken: BrokenDevices) -> Pool:
    """The pool without a broken GPU, which is occupied until `release`.

    Every free share of a GPU is taken for a moment, and the shares of the broken GPU are not
    released. Raises JobFailed if nothing is left.
    """
    import ray  # here, so that what a job refuses is refused without Ray

    shares = gpu_shares(free_resources(_occupied_gpus()), pool.gpus)
    occupant: Any = ray.remote(num_cpus=0, num_gpus=pool.gpus)(_Occupant)
    actors = [occupant.remote() for _ in range(shares)]
    places = {actor.where.remote(): actor for actor in actors}
    ready, _ = ray.wait(list(places), num_returns=len(places), timeout=PLACE_SECONDS)
    bad = (broken.device.host, broken.device.gpus)
    occupants = [places[place] for place in ready if tuple(ray.get(place)) == bad]
    for actor in actors:
        if actor not in occupants:
            ray.kill(actor)
    _occupied.extend((actor, pool.gpus) for actor in occupants)
    workers = min(pool.workers, shares - len(occupants))
    if workers < 1 or not occupants:
        raise JobFailed(f"no GPU is left to work on, the last was {broken}")
    free_resources(_occupied_gpus())  # waits until the others are given back
    return replace(pool, workers=workers)


def _occupied_gpus() -> float:
    return sum(share for _, share in _occupied)


def release() -> None:
    """Gives broken GPUs back to Ray at the end of a job."""
    import ray

    while _occupied:
        actor, _ = _occupied.pop()
        ray.kill(actor)
