"""An object store that takes its time for every request: what a resumed job and a worker pay for.

    python benchmarks/bench_store.py

The store is moto's S3 server behind the proxy of tests/faults, which delays each request. Resuming
is a job of 311 finished shards (CLEVR-Change's number), without the start of Ray. Scoring is a
worker on one shard, whose step waits in place of a network; the alternative is the same worker on
a local disk, in the same run.
"""

from __future__ import annotations

import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
from lib.measuring import report
from rich.console import Console

from cc_prep import storage
from cc_prep.formats import sequences
from cc_prep.records import ImagePair
from pipelines import engine, job
from pipelines.cluster.pool import Resources
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import PlannedShard, of_pairs
from pipelines.state.journal import Done, State

# The path of a program starts with its own folder, and the tests lie beside that.
sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.faults import bad_store

ROUNDS = 3


class Waiting:
    """A step that takes so many seconds a pair and does not use the processor."""

    pairs_per_batch = 1

    def __init__(self, seconds: float, device: str) -> None:
        self.seconds = seconds

    def __call__(self, pairs: Sequence[ImagePair]) -> list[dict[str, bytes]]:
        time.sleep(self.seconds * len(pairs))
        return [{"json": b"{}"} for _ in pairs]

    def free_memory(self) -> None:
        """Has none."""

    def check_device(self) -> None:
        """Has none."""


def plan(shards: int, pairs: int) -> list[PlannedShard]:
    return [
        of_pairs(
            "train",
            number,
            tuple(
                ImagePair("bench", "train", f"{number}-{i}", "change", "b.png", "a.png")
                for i in range(pairs)
            ),
        )
        for number in range(shards)
    ]


def resume(store: bad_store.Store, delay: float, shards: int) -> tuple[float, int]:
    """Seconds and requests of a job that finds all its shards done."""
    folder = f"s3://{bad_store.BUCKET}/finished"
    planned = plan(shards, 2)
    state = State(folder)
    for shard in planned:
        storage.write_bytes(f"{folder}/{shard.name}.tar", b"0123456789")
        state.write_done(
            Done(shard.name, 2, shard.digest(), samples=2, bytes=10, sha256="", seconds=1.0)
        )
    spec = job.JobSpec(
        format=sequences.FORMAT,
        folder=folder,
        shards=planned,
        make_step=partial(Waiting, 0.0),
        settings={},
        weights={},
        threads=1,
        bytes_a_pair=1,
        memory="",
    )
    State(folder).write_plan({shard.name: 2 for shard in planned})
    console = Console(stderr=True, quiet=True)
    resources = (Resources(2, 0),)
    storage.write_json(f"{folder}/provenance.json", _provenance())
    _delay(store, delay)
    began = time.perf_counter()
    with (
        patch.object(engine, "start", lambda: resources),
        patch.object(engine, "stop", lambda: None),
    ):
        summary = job.run(spec, job.Options(device="cpu"), console)
    seconds, requests = time.perf_counter() - began, sum(store.done.values())
    assert summary is not None
    assert (summary.made_now, summary.shards) == (0, shards)
    return seconds, requests


def _provenance() -> dict[str, Any]:
    kind = sequences.FORMAT
    return {
        "format": kind.name,
        "format_version": kind.version,
        "settings": {"device": "cpu"},
        "weights": {},
    }


def _delay(store: bad_store.Store, delay: float) -> None:
    store.fail(1.0 if delay else 0.0, ("slow",))
    store.seconds = delay


def worker_seconds(folder: str, pairs: int, seconds: float) -> float:
    """Seconds of a worker that makes one shard there."""
    state = State(folder)
    state.write_run("bench")
    worker = ShardWorker(
        partial(Waiting, seconds), RunInfo(folder, "bench", sequences.FORMAT, "cpu")
    )
    [shard] = plan(1, pairs)
    began = time.perf_counter()
    worker.run(shard)
    return time.perf_counter() - began


@click.command()
@click.option("--delay", default=0.05, show_default=True, help="Seconds a request.")
@click.option("--shards", default=311, show_default=True, help="Of the finished job.")
@click.option("--pairs", default=256, show_default=True, help="Of the scored shard.")
@click.option("--seconds", default=0.06, show_default=True, help="A pair, in a network's place.")
def main(delay: float, shards: int, pairs: int, seconds: float) -> None:
    """Measures seconds, requests and ratios."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the store's line for each request
    with bad_store.running() as store:
        resumed, requests = resume(store, delay, shards)
        print(
            f"resuming a finished job of {shards} shards, {delay * 1000:.0f} ms a "
            f"request: {resumed:.1f} s, {requests} requests"
        )
        far, near = [], []
        for number in range(ROUNDS):
            _delay(store, delay)
            path = f"s3://{bad_store.BUCKET}/scored-{number}"
            far.append(worker_seconds(path, pairs, seconds))
            with tempfile.TemporaryDirectory() as folder:
                near.append(worker_seconds(folder, pairs, seconds))
        on_store, on_disk = statistics.median(far), statistics.median(near)
        print(
            f"a shard of {pairs} pairs of {seconds * 1000:.0f} ms: "
            f"{on_store:.1f} s on the store, {on_disk:.1f} s on a "
            f"disk, ratio {on_store / on_disk:.3f} (medians of {ROUNDS})"
        )
    report("store", {
        "delay": delay, "shards": shards, "seconds": resumed, "requests": requests,
        "pairs": pairs, "on_store": on_store, "on_disk": on_disk,
        "ratio": on_store / on_disk,
    })  # fmt: skip


if __name__ == "__main__":
    main()
