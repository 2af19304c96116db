"""Which shards of a folder are whole, while one of them is made again."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import provenance, rejects, sequences, training_shards
from cc_prep.inspect import verification
from pipelines import job, progress
from pipelines.state.journal import Journal
from pipelines.stored import finished_shards
from tests import job_factory


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job_factory.work_in_this_process(monkeypatch)


def spec(tmp_path: Path, pairs: int = 8, split: str = "train", **faults: Any) -> job.JobSpec:
    """A job of one shard."""
    return replace(job_factory.spec(tmp_path, **faults), shards=job_factory.shards(pairs, 8, split))


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
    job_factory.run(before)
    with pytest.raises(JobFailed, match="0 of 1 shards are done, the same command resumes"):
        job_factory.run(spec(tmp_path, fails=range(2, 8)), retry_rejects=retry)
    assert record(folder)["complete"] is False
    assert record(folder)["planned"] == {"train-000000": 8}
    assert record(folder)["shards"]["train-000000"]["samples"] == 2, "what is there is accounted"
    with pytest.raises(UserError, match="not all planned shards are finished"):
        finished_shards(folder, sequences.FORMAT, "interpolate")
    if not retry:  # nor does a run of another split finish it
        job_factory.run(spec(tmp_path, 3, "val"))
        assert record(folder)["complete"] is False
    job_factory.run(spec(tmp_path), retry_rejects=retry)
    assert record(folder)["complete"] is True


@pytest.mark.parametrize("retry", [False, True])
def test_a_flipped_bit_is_not_taken_over(
    tmp_path: Path, retry: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: damage that `verify` saw before a retry or a larger --limit, and not after it;
    and a shard that is made again in silence.
    """
    before = spec(tmp_path, rejects=[5]) if retry else spec(tmp_path, 6)
    job_factory.run(before)
    path = Path(before.folder, "train-000000.tar")
    path.write_bytes(path.read_bytes().replace(b'"number": 3', b'"number": 2'))
    assert verification.verify(before.folder, sequences.FORMAT)
    capfd.readouterr()
    job_factory.run(spec(tmp_path), retry_rejects=retry)
    assert "train-000000.tar was not as it was written" in "".join(capfd.readouterr())
    undisturbed = replace(spec(tmp_path), folder=str(tmp_path / "undisturbed"))
    job_factory.run(undisturbed)
    for name in ("train-000000.tar", "rejects.parquet", "provenance.json"):
        assert (
            Path(before.folder, name).read_bytes() == Path(undisturbed.folder, name).read_bytes()
        ), name


class FullAtTheEnd:
    """A disk that has room for the account of a job's start, and not for that of its end."""

    def __init__(self, write: Callable[..., None]) -> None:
        self.write, self.calls = write, 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        if self.calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.write(*arguments)


@pytest.mark.parametrize(
    ("module", "name"),
    [(provenance, "write"), (training_shards, "write_index"), (rejects, "write")],
    ids=["provenance", "index", "rejects"],
)
def test_an_account_that_cannot_be_written_fails_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """Keeps away: exit code 0 though the disk was full at the job's last write; a folder that
    calls itself complete beside the index of the run before."""
    indexed = replace(spec(tmp_path), format=training_shards.FORMAT)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, FullAtTheEnd(getattr(module, name)))
        with pytest.raises(JobFailed, match="the disk is full"):
            job_factory.run(indexed)
    assert record(indexed.folder)["complete"] is False
    summary = job_factory.run(indexed)
    assert (summary.made_now, summary.samples) == (0, 8)
    assert record(indexed.folder)["complete"] is True
    assert len(training_shards.read_index(indexed.folder)) == 8


def test_the_first_error_is_the_one_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "the disk is full" of the account in place of why the workers failed."""
    monkeypatch.setattr(provenance, "write", FullAtTheEnd(provenance.write))
    with pytest.raises(JobFailed, match=r"pairs failed .*; 0 of 1 shards"):
        job_factory.run(spec(tmp_path, fails=range(8)))


def test_a_larger_plan_that_did_not_finish_is_named(tmp_path: Path) -> None:
    """Keeps away: "Run: cc-prep interpolate" after a run with a smaller --limit, which ends with
    exit code 0 and changes nothing, again and again."""
    with pytest.raises(JobFailed):
        job_factory.run(replace(spec(tmp_path, fails=range(16)), shards=job_factory.shards(16, 8)))
    job_factory.run(spec(tmp_path))
    with pytest.raises(UserError) as caught:
        finished_shards(spec(tmp_path).folder, sequences.FORMAT, "interpolate")
    assert "(train: 8 of 16 pairs). Run: cc-prep interpolate, for all of these" in str(caught.value)
    job_factory.run(replace(spec(tmp_path), shards=job_factory.shards(16, 8)))
    assert len(finished_shards(spec(tmp_path).folder, sequences.FORMAT, "interpolate")) == 2


def test_progress_counts_the_pairs_of_a_shard_that_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a bar that stands still for the whole of a job with a larger --limit, and
    "waiting for Ray to start" workers that are at work."""
    job_factory.run(spec(tmp_path, 2))
    counts: list[progress.Counts] = []

    class Looked(progress.Watcher):
        """Looks once, after a worker has made five pairs."""

        def __enter__(self) -> Looked:
            self.state.write_journal(Journal("train-000000", "run", "host", ["x"], done=5))
            counts.append(self.counts())
            super().__enter__()
            return self

    monkeypatch.setattr(job, "Watcher", Looked)
    job_factory.run(spec(tmp_path))
    assert counts == [progress.Counts(8, 5, 0, shards=1, shards_done=0, under_way=1, left=(3,))]
