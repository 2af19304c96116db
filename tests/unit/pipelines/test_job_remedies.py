"""What a job that ends by an error of a file says, and whether its remedy helps."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from cc_prep.errors import FileRefused
from cc_prep.steps.base import MakeStep
from pipelines import engine, job
from pipelines.cluster.pool import Pool
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import PlannedShard
from pipelines.state.journal import Done
from tests import job_factory


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like Ray's, they take a shard as a row and explain errors of files."""
    job_factory.work_in_this_process(monkeypatch)

    def run(
        shards: list[PlannedShard], make_step: MakeStep, run_info: RunInfo, pool: Pool
    ) -> Iterator[Done]:
        worker = ShardWorker(make_step, run_info)
        for shard in shards:
            [done] = worker({"shard": [json.dumps(shard.to_json())]})["done"]
            yield Done.from_json(done)

    monkeypatch.setattr(engine, "run", run)


def run(spec: job.JobSpec, **options: bool) -> job.Summary:
    summary = job.run(
        spec, job.Options(device="cpu", **options), Console(file=io.StringIO(), width=500)
    )
    assert summary is not None
    return summary


def test_an_error_of_a_file_says_how_far_the_job_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a user who starts a job of hours anew, since its token expired."""
    whole = engine.run

    def refused(*arguments: object) -> Iterator[Done]:
        yield next(whole(*arguments))
        raise FileRefused("x: Denied", "Give keys")

    monkeypatch.setattr(engine, "run", refused)
    words = "^x: Denied. Give keys; 1 of 4 shards are done, the same command resumes$"
    with pytest.raises(FileRefused, match=words):
        run(job_factory.spec(tmp_path))


def test_a_damaged_shard_is_mended_by_a_retry_or_by_removing_it(tmp_path: Path) -> None:
    """Keeps away: a job that fails at a damaged shard in the same way for ever, and a remedy that
    finds a shard of the right size and says that all is done."""
    spec = job_factory.spec(tmp_path, rejects=[1])
    run(spec)
    shard = tmp_path / "out/train-000000.tar"
    content = shard.read_bytes()
    shard.write_bytes(b"\xff" * 512 + content[512:])
    assert run(spec).made_now == 0
    assert run(spec, retry_rejects=True).samples == 19
    assert shard.read_bytes() == content
    shard.unlink()
    assert run(spec).made_now == 1
    assert shard.read_bytes() == content
