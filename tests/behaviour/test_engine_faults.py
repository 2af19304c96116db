"""The engine on real Ray with real deaths: nothing is lost, doubled, or retried for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import rejects, sequences
from cc_prep.formats.tar import read_shard
from pipelines import engine, job
from tests import fakes
from tests.conftest import ROOT


def make(faults: dict[str, Any], device: str) -> Callable[[], fakes.NumberStep]:
    return partial(fakes.NumberStep, **faults)


def work(tmp_path: Path, name: str = "out", pairs: int = 20, **faults: Any) -> job.Work:
    return job.Work(
        format=sequences.FORMAT,
        folder=str(tmp_path / name),
        shards=fakes.shards(pairs, 5),
        make_step=partial(make, {"folder": str(tmp_path), **faults}),
        settings={"a": 1},
        weights={},
        threads=1,
        bytes_a_pair=100,
        memory="",
    )


def run(work: job.Work, **options: Any) -> job.Summary:
    summary = job.run(work, job.Options(workers=2, **options), engine.messages())
    assert summary is not None
    return summary


@pytest.fixture(autouse=True)
def workers_find_the_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def numbers(folder: str) -> list[str]:
    shards = sorted(Path(folder).glob("*.tar"))
    return [key for shard in shards for key, _ in read_shard(str(shard))]


def test_a_pair_that_kills_its_process_twice_is_set_aside_and_named(tmp_path: Path) -> None:
    """Keeps away: Ray Data's retries without end."""
    faulty = work(tmp_path, kills=[5, 6, 13], batch=4)
    summary = run(faulty)
    assert (summary.samples, summary.rejected) == (17, 3)
    found = rejects.read(faulty.folder)
    assert [r.id for r in found] == ["0005", "0006", "0013"]
    assert {r.reason for r in found} == {"killed its process"}
    assert len(numbers(faulty.folder)) == len(set(numbers(faulty.folder))) == 17


def test_a_worker_killed_once_costs_nothing(tmp_path: Path) -> None:
    summary = run(work(tmp_path, kills_once=[3, 9, 17], batch=2))
    assert (summary.samples, summary.rejected) == (20, 0)
    undisturbed = run(work(tmp_path, "other"))
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "other" / shard.name).read_bytes()
    assert undisturbed.bytes == summary.bytes


def test_a_broken_machine_ends_the_job_with_its_error_and_resumes(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        run(work(tmp_path, fails=range(10, 20), seconds=0.05))
    said = str(caught.value)
    assert "ZeroDivisionError" in said
    assert "the same command resumes" in said
    assert "\n" not in said
    summary = run(work(tmp_path))
    assert (summary.samples, summary.rejected) == (20, 0)
    assert 1 <= summary.made_now <= 3
    assert not list((tmp_path / "out").glob("*.tmp"))


def broken(how: str, device: str) -> Callable[[], fakes.BrokenStep]:
    return partial(fakes.BrokenStep, how)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [("raises", UserError, "no weights on this node. Put them there"),
     ("dies", JobFailed, "its worker died 3 times between pairs")],
)  # fmt: skip
def test_a_worker_that_cannot_start_ends_the_job(
    tmp_path: Path, how: str, error: type[Exception], said: str
) -> None:
    """Keeps away: Ray's silent restarts of an actor whose constructor dies."""
    hopeless = work(tmp_path)
    object.__setattr__(hopeless, "make_step", partial(broken, how))
    with pytest.raises(error) as caught:
        run(hopeless)
    assert said in str(caught.value)


def test_a_second_run_does_nothing_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = run(work(tmp_path, rejects=[2]))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tar")}
    second = run(work(tmp_path))
    assert second.made_now == 0
    assert (second.samples, second.rejected) == (first.samples, first.rejected) == (19, 1)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tar")} == before
    other = work(tmp_path)
    other.settings["a"] = 2
    with pytest.raises(UserError, match="a: 1 → 2"):
        run(other)


def test_rejects_are_retried_only_when_asked(tmp_path: Path) -> None:
    faulty = work(tmp_path, rejects=[2, 11])
    assert run(faulty).rejected == 2
    mended = run(work(tmp_path), retry_rejects=True)
    assert (mended.samples, mended.rejected, mended.made_now) == (20, 0, 2)
    assert rejects.read(faulty.folder) == []
    run(work(tmp_path, "other"))
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "other" / shard.name).read_bytes()


def test_a_lost_shard_is_made_again(tmp_path: Path) -> None:
    first = run(work(tmp_path))
    lost = tmp_path / "out" / "train-000002.tar"
    data = lost.read_bytes()
    lost.unlink()
    (tmp_path / "out" / "train-000001.tar").write_bytes(b"cut")
    again = run(work(tmp_path))
    assert again.made_now == 2
    assert again.samples == first.samples
    assert lost.read_bytes() == data


def test_more_workers_than_cpus_and_gpus_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"Ray has {os.cpu_count()} free"):
        job.run(work(tmp_path), job.Options(workers=1000), engine.messages())
    with pytest.raises(UserError, match="no free GPU"):
        job.run(work(tmp_path), job.Options(device="gpu"), engine.messages())
    assert not (tmp_path / "out").exists(), "a refused run leaves nothing behind"


def test_no_room_and_no_permission(tmp_path: Path) -> None:
    huge = work(tmp_path)
    object.__setattr__(huge, "bytes_a_pair", 10**15)
    with pytest.raises(UserError, match="GB free"):
        run(huge)
    (tmp_path / "file").write_text("")
    blocked = work(tmp_path, "file/out")
    with pytest.raises(UserError, match="cannot write there"):
        run(blocked)


def test_an_unreachable_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(UserError, match=r"no Ray at RAY_ADDRESS=127\.0\.0\.1:1"):
        run(work(tmp_path))
    assert time.monotonic() - started < 60, "Ray by itself waits for many minutes"
