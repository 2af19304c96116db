"""What `cc-prep status` counts as done, begun and missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pipelines.cli.look import status
from pipelines.state import lock
from pipelines.state.journal import Journal, State
from tests import job_factory


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished job of four shards of five pairs."""
    job_factory.work_in_this_process(monkeypatch)
    return Path(job_factory.run(job_factory.spec(tmp_path)).folder)


def figures(folder: Path) -> dict[str, Any]:
    output = CliRunner().invoke(status, [str(folder), "--json"], catch_exceptions=False).output
    printed: dict[str, Any] = json.loads(output)
    return printed


def test_a_finished_job(folder: Path) -> None:
    assert figures(folder)["pairs"] == {"planned": 20, "done": 20, "rejected": 0, "left": 0}
    assert figures(folder)["shards"] == {"planned": 4, "done": 4, "interrupted": 0, "missing": 0}


def test_a_shard_that_is_made_again_is_begun_and_not_done(folder: Path) -> None:
    """Keeps away: "done 4 of 4" while a larger --limit is half done."""
    state = State(str(folder))
    state.write_plan({f"train-{i:06d}": 5 for i in range(3)} | {"train-000003": 9})
    assert figures(folder)["missing"] == ["train-000003"], "not begun yet"
    state.write_journal(Journal("train-000003", "run", "host", ["x"], done=6))
    now = figures(folder)
    assert now["pairs"] == {"planned": 24, "done": 21, "rejected": 0, "left": 3}
    assert now["shards"] == {"planned": 4, "done": 3, "interrupted": 1, "missing": 0}


def test_a_running_job_tells_its_speed_and_the_time_left(folder: Path) -> None:
    """Keeps away: an operator who has to ask twice and reckon, and a speed of a job that ended."""
    state = State(str(folder))
    state.write_plan({f"train-{i:06d}": 5 for i in range(4)} | {"val-000000": 100})
    assert "pairs_per_second" not in figures(folder)
    with lock.locked(str(folder), lambda: None):
        assert figures(folder)["seconds_left"] is None, "no worker is at it yet"
        state.write_run("run")
        state.write_journal(Journal("val-000000", "run", "host", ["x"], done=60, seconds=120.0))
        now = figures(folder)
        output = CliRunner().invoke(status, [str(folder)], catch_exceptions=False).output
    assert now["pairs_per_second"] == pytest.approx(80 / 120, rel=0.1), "with the shards before"
    assert now["seconds_left"] == pytest.approx(40 * 120 / 80, rel=0.1)
    assert re.search(r"speed +0\.6\d pairs/s, 0[01]:\d\d left", output)


@pytest.mark.parametrize("damage", ["gone", "shorter"])
def test_a_shard_whose_file_is_not_whole_is_missing(folder: Path, damage: str) -> None:
    path = folder / "train-000001.tar"
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(data[:-512])
    assert figures(folder)["missing"] == ["train-000001"]
    assert figures(folder)["pairs"]["done"] == 15


def test_a_journal_that_a_crash_left_beside_a_done_file_goes(tmp_path: Path, folder: Path) -> None:
    """Keeps away: a shard that counts as interrupted for ever, since nothing is left to make."""
    State(str(folder)).write_journal(Journal("train-000001", "run", "host", [], done=5))
    assert figures(folder)["begun"] == ["train-000001"]
    job_factory.run(job_factory.spec(tmp_path))
    assert figures(folder)["begun"] == []
