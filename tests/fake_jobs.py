"""Jobs of `fakes` steps for the engine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from cc_prep.formats import sequences
from pipelines import job
from pipelines.cluster.output import messages
from tests.fakes import number_step, shards


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
