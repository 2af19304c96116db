"""An object store that takes 50 ms for every request: how many a job makes, and how many at once.

`benchmarks/bench_store.py` measures the seconds of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep import storage
from cc_prep.formats import provenance, sequences
from pipelines import engine, job
from pipelines.cluster.pool import Resources
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.state.journal import Done, State
from tests import job_factory
from tests.faults import bad_store

SHARDS, PAIRS = 40, 128


@pytest.fixture(scope="module")
def store() -> Iterator[bad_store.Store]:
    with bad_store.running() as slow_store:
        slow_store.seconds = 0.05
        yield slow_store


def delay(store: bad_store.Store) -> None:
    """From now on, and counts from nothing."""
    store.fail(1.0, ("slow",))


def test_what_is_finished_is_read_once_and_side_by_side(
    store: bad_store.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: several requests a shard, one after the other: minutes for a job that is done."""
    folder = f"s3://{bad_store.BUCKET}/finished"
    spec = replace(job_factory.spec(tmp_path, pairs=5 * SHARDS), folder=folder)
    state = State(folder)
    for shard in spec.shards:
        storage.write_bytes(f"{folder}/{shard.name}.tar", b"0123456789")
        state.write_done(
            Done(shard.name, 5, shard.digest(), samples=5, bytes=10, sha256="", seconds=1.0)
        )
    state.write_plan({shard.name: 5 for shard in spec.shards})
    record = {"format": spec.format.name, "format_version": spec.format.version, "weights": {}}
    provenance.write(folder, {**record, "settings": {**spec.settings, "device": "cpu"}})
    monkeypatch.setattr(engine, "start", lambda: (Resources(2, 0),))
    monkeypatch.setattr(engine, "stop", lambda: None)
    delay(store)
    summary = job.run(spec, job.Options(device="cpu"), Console(file=io.StringIO()))
    assert summary is not None
    assert (summary.made_now, summary.shards) == (0, SHARDS)
    assert store.methods["GET"] < SHARDS + 15
    assert sum(store.methods.values()) < SHARDS + 35
    assert store.most_at_once >= 4


def test_a_worker_that_is_fast_writes_few_journals(store: bad_store.Store, tmp_path: Path) -> None:
    """Keeps away: a GPU that waits for a PUT before every sequence."""
    folder = f"s3://{bad_store.BUCKET}/scored"
    State(folder).write_run("run")
    step = partial(job_factory.number_step, {"folder": str(tmp_path), "seconds": 0.01})
    worker = ShardWorker(step, RunInfo(folder, "run", sequences.FORMAT, "cpu"))
    delay(store)
    done = worker.run(job_factory.shards(PAIRS, PAIRS)[0])
    assert done.samples == PAIRS
    assert store.methods["PUT"] < PAIRS / 6
