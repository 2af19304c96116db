"""A job whose finished shards were made from something that has changed since."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rich.console import Console

from pipelines import job
from pipelines.shards import PlannedShard
from pipelines.state.journal import Done
from tests import job_factory


@dataclass(frozen=True)
class Derived(PlannedShard):
    """A shard made from another file, whose digest is `made_from`."""

    made_from: str = ""

    def digest(self) -> str:
        return self.made_from

    def remaining(self, done: Done | None, retry_rejects: bool) -> PlannedShard | None:
        return None if done is not None and done.input_digest == self.made_from else self


def run(tmp_path: Path, *digests: str, pairs: int = 6) -> str:
    """What a job prints whose shards, of two pairs, are made from files of these digests."""
    shards = [
        Derived(one.split, one.name, one.source, made_from=digest)
        for one, digest in zip(job_factory.shards(pairs, 2), digests, strict=True)
    ]
    out = io.StringIO()
    spec = replace(job_factory.spec(tmp_path), shards=shards)
    assert job.run(spec, job.Options(workers=1), Console(file=out, width=200)) is not None
    return out.getvalue()


def test_it_is_said_that_shards_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: hours of work that are done a second time without a word."""
    job_factory.work_in_this_process(monkeypatch)
    assert "again" not in run(tmp_path, "a", "b", "c")
    output = run(tmp_path, "a", "other", "another")
    assert "1 of 3 shards" in output
    assert "2 of 3 shards are made again, since what they are made from changed" in output
    output = run(tmp_path, "a", "other", "another")
    assert "3 of 3 shards" in output
    assert "again" not in output
    assert "again" not in run(tmp_path / "new", "a", "b", "c", pairs=5)
    assert "again" not in run(tmp_path / "new", "a", "b", "with one more", pairs=6)
