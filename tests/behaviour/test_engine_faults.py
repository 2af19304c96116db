"""The engine on real Ray with real deaths: nothing is lost, doubled, or retried for ever.

All jobs share one Ray; what Ray has no part in goes without it. Jobs that end with an error are in
`test_engine_ends.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray import data

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import rejects
from pipelines import engine, job
from pipelines.cluster.pool import Pool
from pipelines.cluster.session import messages
from pipelines.shard_worker import RunInfo
from pipelines.state.journal import State
from tests import job_factory
from tests.commands import one_ray, without_ray
from tests.job_factory import run, spec


@pytest.fixture(autouse=True, scope="module")
def ray() -> Iterator[None]:
    with one_ray():
        yield


@pytest.fixture
def no_ray() -> Iterator[None]:
    with without_ray():
        yield


def test_pairs_that_kill_their_process_are_set_aside_and_named(tmp_path: Path) -> None:
    """At the second time; a worker that is killed once costs nothing.

    Keeps away: Ray Data's retries without end.
    """
    faulty = spec(tmp_path, kills=[5, 6], kills_once=[3, 13], batch=4)
    summary = run(faulty)
    assert (summary.samples, summary.rejected) == (18, 2)
    rejected = rejects.read(faulty.folder)
    assert [r.id for r in rejected] == ["0005", "0006"]
    assert {r.reason for r in rejected} == {"killed its process"}
    with without_ray():
        undisturbed = run(spec(tmp_path, "other", rejects=[5, 6]))
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "other" / shard.name).read_bytes()
    assert undisturbed.bytes == summary.bytes


@pytest.mark.usefixtures("no_ray")
def test_a_second_run_does_nothing_and_other_settings_are_refused(tmp_path: Path) -> None:
    first = run(spec(tmp_path, rejects=[2]))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tar")}
    second = run(spec(tmp_path))
    assert second.made_now == 0
    assert (second.samples, second.rejected) == (first.samples, first.rejected) == (19, 1)
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out").glob("*.tar")} == before
    other = spec(tmp_path)
    other.settings["a"] = 2
    with pytest.raises(UserError, match="a: 1 → 2"):
        run(other)


def test_a_shard_is_reported_when_it_is_finished(tmp_path: Path) -> None:
    """Keeps away: Ray's prefetching, which held a shard back until the next one was finished. A
    job's progress went backwards at the end of each shard."""
    slow = spec(tmp_path, seconds=0.4)
    resources, run_info = Pool(1, 1, 0.0), RunInfo(slow.folder, "run", slow.format, "cpu")
    state = State(slow.folder)
    state.write_run(run_info.id)
    engine.start()
    try:
        records = engine.run(slow.shards, slow.make_step, run_info, resources)
        finished = [[next(records).shard, *sorted(state.done())] for _ in range(2)]
    finally:
        engine.stop()
    names = [shard.name for shard in slow.shards]
    assert finished == [[names[0], names[0]], [names[1], *names[:2]]]


@pytest.mark.usefixtures("no_ray")
def test_rejects_are_retried_only_when_asked(tmp_path: Path) -> None:
    faulty = spec(tmp_path, rejects=[2, 11])
    assert run(faulty).rejected == 2
    mended = run(spec(tmp_path), retry_rejects=True)
    assert (mended.samples, mended.rejected, mended.made_now) == (20, 0, 2)
    assert rejects.read(faulty.folder) == []
    run(spec(tmp_path, "other"))
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        assert shard.read_bytes() == (tmp_path / "other" / shard.name).read_bytes()


@pytest.mark.usefixtures("no_ray")
def test_a_lost_shard_is_made_again(tmp_path: Path) -> None:
    first = run(spec(tmp_path))
    lost = tmp_path / "out" / "train-000002.tar"
    data = lost.read_bytes()
    lost.unlink()
    (tmp_path / "out" / "train-000001.tar").write_bytes(b"cut")
    again = run(spec(tmp_path))
    assert again.made_now == 2
    assert again.samples == first.samples
    assert lost.read_bytes() == data


@pytest.mark.usefixtures("no_ray")
def test_a_broken_machine_ends_the_job_with_its_error_and_resumes(tmp_path: Path) -> None:
    with pytest.raises(JobFailed) as caught:
        run(spec(tmp_path, fails=range(10, 20), seconds=0.05))
    message = str(caught.value)
    assert "ZeroDivisionError" in message
    assert "the same command resumes" in message
    assert "\n" not in message
    summary = run(spec(tmp_path))
    assert (summary.samples, summary.rejected) == (20, 0)
    assert 1 <= summary.made_now <= 3
    assert not list((tmp_path / "out").glob("*.tmp"))


def test_more_workers_than_cpus_and_gpus_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Ray has 2 CPUs free"):
        job.run(spec(tmp_path), job.Options(workers=1000), messages())
    with pytest.raises(UserError, match="no free GPU"):
        job.run(spec(tmp_path), job.Options(device="gpu"), messages())
    assert not (tmp_path / "out").exists(), "a refused run leaves nothing behind"


@pytest.mark.usefixtures("no_ray")
def test_no_room_and_no_permission(tmp_path: Path) -> None:
    huge = spec(tmp_path)
    object.__setattr__(huge, "bytes_a_pair", 10**15)
    with pytest.raises(UserError, match="GB free"):
        run(huge)
    (tmp_path / "file").write_text("")
    blocked = spec(tmp_path, "file/out")
    with pytest.raises(UserError, match="cannot write there"):
        run(blocked)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is set on Linux alone")
def test_a_worker_keeps_what_it_frees() -> None:
    """In the thread in which Ray Data calls it."""
    rows = data.range(8, override_num_blocks=8).map_batches(
        job_factory.CountsPageFaults, concurrency=1, batch_size=1
    )
    faults = [row["faults"] for row in rows.take_all()]
    # Of the pages that a call writes. The first calls have none yet, or lose some to Ray's threads.
    assert min(faults) < 163_840 / 4


def test_a_dry_run_tries_pairs_in_as_many_workers_as_the_job_has(tmp_path: Path) -> None:
    """Keeps away: a time that leaves out what workers take from each other, one that a pair which
    kills its process hides behind Ray's words, and a try that Ray repeats for ever."""
    two = Pool(2, 1, 0)
    good = spec(tmp_path, seconds=0.1)
    trials, starting = engine.try_out(good.shards, good.make_step, two)
    assert [trial.speed.pairs for trial in trials] == [4, 4]
    assert all(0.1 <= trial.speed.a_pair < 1 for trial in trials)
    assert 0 < starting < 60
    deadly = spec(tmp_path, kills=[0])
    with pytest.raises(JobFailed, match="died"):
        engine.try_out(deadly.shards, deadly.make_step, two)
