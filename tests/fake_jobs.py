"""Jobs of `fakes` steps for the engine."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cc_prep.formats import sequences
from cc_prep.steps.base import MakeStep
from pipelines import engine, job
from pipelines.cluster.pool import Pool, Resources
from pipelines.cluster.session import messages
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import PlannedShard
from pipelines.state.journal import Done
from tests.fakes import number_step, shards


def work_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray: the shards are made one after the other by one worker."""

    def run(
        shards: list[PlannedShard], make_step: MakeStep, run_info: RunInfo, pool: Pool
    ) -> Iterator[Done]:
        worker = ShardWorker(make_step, run_info)
        for shard in shards:
            yield worker.run(shard)

    monkeypatch.setattr(engine, "start", lambda: (Resources(2, 0),))
    monkeypatch.setattr(engine, "stop", lambda: None)
    monkeypatch.setattr(engine, "run", run)


def spec(tmp_path: Path, name: str = "out", pairs: int = 20, **faults: Any) -> job.JobSpec:
    """A job on pairs that exist nowhere, with these faults."""
    return job.JobSpec(
        format=sequences.FORMAT,
        folder=str(tmp_path / name),
        shards=shards(pairs, 5),
        make_step=partial(number_step, {"folder": str(tmp_path), **faults}),
        settings={"a": 1},
        weights={},
        threads=1,
        bytes_a_pair=100,
        memory="",
    )


def run(spec: job.JobSpec, **options: Any) -> job.Summary:
    """Runs it with two workers."""
    summary = job.run(spec, job.Options(workers=2, **options), messages())
    assert summary is not None
    return summary
