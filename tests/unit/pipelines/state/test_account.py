"""Which shards of a folder are whole, while one of them is made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import provenance, sequences
from pipelines import job, progress
from pipelines.state.journal import Journal
from pipelines.stored import finished_shards
from tests import fake_jobs, fakes


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_jobs.work_in_this_process(monkeypatch)


def spec(tmp_path: Path, pairs: int = 8, split: str = "train", **faults: Any) -> job.JobSpec:
    """A job of one shard."""
    return replace(fake_jobs.spec(tmp_path, **faults), shards=fakes.shards(pairs, 8, split))


def record(folder: str) -> dict[str, Any]:
    recorded = provenance.read(folder)
    assert recorded is not None
    return recorded


@pytest.mark.parametrize("retry", [False, True])
def test_a_shard_that_is_to_be_made_again_is_not_complete(tmp_path: Path, retry: bool) -> None:
    """Keeps away: a later step that takes the 2 pairs of before for all 8, since the file with
    these is still there."""
    before = spec(tmp_path, rejects=range(2, 8)) if retry else spec(tmp_path, 2)
    folder = before.folder
    fake_jobs.run(before)
    with pytest.raises(JobFailed, match="0 of 1 shards are done, the same command resumes"):
        fake_jobs.run(spec(tmp_path, fails=range(2, 8)), retry_rejects=retry)
    assert record(folder)["complete"] is False
    assert record(folder)["planned"] == {"train-000000": 8}
    assert record(folder)["shards"]["train-000000"]["samples"] == 2, "what is there is accounted"
    with pytest.raises(UserError, match="not all planned shards are finished"):
        finished_shards(folder, sequences.FORMAT, "interpolate")
    if not retry:  # nor does a run of another split finish it
        fake_jobs.run(spec(tmp_path, 3, "val"))
        assert record(folder)["complete"] is False
    fake_jobs.run(spec(tmp_path), retry_rejects=retry)
    assert record(folder)["complete"] is True


def test_progress_counts_the_pairs_of_a_shard_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a bar that stands still for the whole of a job with a larger --limit, and
    "waiting for Ray to start" workers that are at work."""
    fake_jobs.run(spec(tmp_path, 2))
    counts: list[progress.Counts] = []

    class Looked(progress.Watcher):
        """Looks once, after a worker has made five pairs."""

        def __enter__(self) -> Looked:
            self.state.write_journal(Journal("train-000000", "run", "host", ["x"], done=5))
            counts.append(self.counts())
            super().__enter__()
            return self

    monkeypatch.setattr(job, "Watcher", Looked)
    fake_jobs.run(spec(tmp_path))
    assert counts == [progress.Counts(8, 5, 0, shards=1, shards_done=0, under_way=1)]
