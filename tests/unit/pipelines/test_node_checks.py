"""What a worker checks of its node before its first write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.formats import sequences
from pipelines import shard_worker
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.state.journal import State
from tests import job_factory


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_worker.VISIBLE_SECONDS >= 5, "a network file system takes some seconds"
    monkeypatch.setattr(shard_worker, "VISIBLE_SECONDS", 0.0)


def start(folder: Path, info: RunInfo) -> None:
    step = job_factory.NumberStep(str(folder))
    ShardWorker(lambda device: step, info).run(job_factory.shards(2, 2)[0])


def test_a_node_that_does_not_see_the_plan_writes_nothing(tmp_path: Path) -> None:
    """Keeps away: shards on a disk of the node's own, which nobody ever finds."""
    State(str(tmp_path)).write_run("an earlier one")
    before = sorted(tmp_path.rglob("*"))
    info = RunInfo(str(tmp_path), "run", sequences.FORMAT, "cpu")
    with pytest.raises(UserError, match=r"the plan of this run is not there.*all nodes share"):
        start(tmp_path, info)
    assert sorted(tmp_path.rglob("*")) == before
    State(str(tmp_path)).write_run("run")
    start(tmp_path, info)
    assert (tmp_path / "train-000000.tar").exists()


def test_a_node_with_other_code_is_refused(tmp_path: Path) -> None:
    """Keeps away: shards of one folder that two versions of the package have made."""
    State(str(tmp_path)).write_run("run")
    info = RunInfo(str(tmp_path), "run", sequences.FORMAT, "cpu")
    assert len(info.code) == 64
    with pytest.raises(UserError, match="another version of this package"):
        start(tmp_path, replace(info, code="0" * 64))
    assert not list(tmp_path.glob("*.tar"))


def test_one_file_a_run(tmp_path: Path) -> None:
    state = State(str(tmp_path))
    state.write_run("a")
    state.write_run("b")
    assert (state.has_run("a"), state.has_run("b")) == (False, True)
    state.remove_run("b")
    assert not list((tmp_path / ".state").iterdir())
