"""The frame around a job, with workers in this process: resume, account, refusals."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cc_prep import manifest, storage
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats import provenance, rejects, sequences, training_shards
from pipelines import engine, job
from pipelines.cluster.pool import Resources
from pipelines.job import JobSpec, Options, Summary
from pipelines.shards import PlannedShard
from pipelines.state import lock, sources
from pipelines.state.journal import Done, State
from tests import job_factory


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job_factory.work_in_this_process(monkeypatch)


def spec(folder: Path, pairs: int = 10, **more: Any) -> JobSpec:
    """A job of shards of 4 pairs, whose samples tell their numbers."""
    faults = more.pop("faults", {})
    base = JobSpec(
        format=sequences.FORMAT,
        folder=str(folder),
        shards=job_factory.shards(pairs, 4),
        make_step=partial(job_factory.number_step, {"folder": str(folder), **faults}),
        settings={"depth": 2},
        weights={"net": "abc"},
        threads=1,
        bytes_a_pair=1000,
        memory="little",
    )
    return replace(base, **more)


def run(job_spec: JobSpec, **options: Any) -> tuple[Summary | None, str]:
    out = io.StringIO()
    console = Console(file=out, width=500)
    return job.run(job_spec, Options(device="cpu", **options), console), out.getvalue()


def test_a_job_and_its_account(tmp_path: Path) -> None:
    summary, _ = run(spec(tmp_path, faults={"rejects": [1, 9]}))
    assert summary is not None
    assert (summary.planned, summary.samples, summary.rejected) == (10, 8, 2)
    assert (summary.shards, summary.made_now) == (3, 3)
    files = sorted(tmp_path.glob("*.tar"))
    assert summary.bytes == sum(path.stat().st_size for path in files)
    record = provenance.read(str(tmp_path))
    assert record is not None
    assert record["complete"] is True
    assert record["settings"] == {"depth": 2, "device": "cpu"}
    assert record["planned"] == {"train-000000": 4, "train-000001": 4, "train-000002": 2}
    counts = {n: (s["samples"], s["rejected"]) for n, s in record["shards"].items()}
    assert counts == {"train-000000": (3, 1), "train-000001": (4, 0), "train-000002": (1, 1)}
    assert [reject.id for reject in rejects.read(str(tmp_path))] == ["0001", "0009"]
    assert lock.holder(str(tmp_path)) is None


def test_the_data_that_shards_were_made_of_is_recorded(tmp_path: Path) -> None:
    """Keeps away: a data set that is named by the first run that has nothing to do."""
    data = sources.of_pairs(manifest.load("own", root="/data"), job_factory.shards(10, 4))
    for root in ("/data", "/elsewhere"):  # the second has nothing left to do
        run(spec(tmp_path, data={**data, "roots": [root]}))
        record = provenance.read(str(tmp_path))
        assert record is not None
        assert record["data"]["roots"] == ["/data"]


def test_the_gpu_that_made_a_shard_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: shards of two kinds of GPU of which nobody can say which made which, since the
    driver's machine has none, or has not looked."""
    import torch

    monkeypatch.setattr(engine, "start", lambda: (Resources(2, 1.0),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100")
    job.run(spec(tmp_path), Options(), Console(file=io.StringIO()))
    record = provenance.read(str(tmp_path))
    assert record is not None
    assert record["settings"]["device"] == "cuda"
    assert {shard["gpu"] for shard in record["shards"].values()} == {"NVIDIA H100"}


def test_finished_shards_are_left_alone(tmp_path: Path) -> None:
    run(spec(tmp_path, 6))
    before = (tmp_path / "train-000000.tar").stat().st_mtime_ns
    summary, output = run(spec(tmp_path, 6))
    assert summary is not None
    assert summary.made_now == 0
    assert "2 of 2 shards are done already" in output
    grown, output = run(spec(tmp_path, 10))
    assert grown is not None
    assert (grown.made_now, grown.samples) == (2, 10)
    assert "1 of 3 shards" in output
    assert (tmp_path / "train-000000.tar").stat().st_mtime_ns == before
    assert "done already" not in run(spec(tmp_path / "new", 4))[1]


def test_a_dry_run_tells_the_time_of_all_pairs(tmp_path: Path) -> None:
    """Keeps away: days of a CPU's work of which nobody was told, or a time of one step alone."""
    _, plan = run(spec(tmp_path, 8_000, faults={"seconds": 0.05}), dry_run=True, workers=2)
    [line] = [line for line in plan.splitlines() if line.startswith("time ")]
    words = r"about (.+) min with 2 workers: 0 s to start, then (.+) s of a worker for a pair, "
    found = re.fullmatch(rf"time     {words}measured on \d+ pairs", line)
    assert found is not None, line
    assert 0.05 <= float(found[2]) < 1
    assert float(found[1]) == pytest.approx(4_000 * float(found[2]) / 60, rel=0.1)
    run(spec(tmp_path / "done", 4))
    assert "time " not in run(spec(tmp_path / "done", 4), dry_run=True)[1], "nothing is to do"


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        ({"rejects": range(8)}, "the first pairs are all rejected"),
        ({"fails": [0]}, "ZeroDivisionError: pair 0"),
    ],
)
def test_pairs_that_fail_leave_a_plan_without_a_time(
    tmp_path: Path, faults: dict[str, Any], why: str
) -> None:
    """Keeps away: a dry run that a broken pair ends, and "0 s" from pairs that were rejected."""
    _, plan = run(spec(tmp_path, 8, faults=faults), dry_run=True)
    assert f"time     not known: {why}" in plan
    assert "nothing was written" in plan


@pytest.mark.parametrize("damage", ["gone", "shorter", "longer"])
def test_a_shard_whose_file_is_not_whole_is_made_again(tmp_path: Path, damage: str) -> None:
    """Keeps away: a done file that is believed though the shard beside it is not there."""
    run(spec(tmp_path))
    path = tmp_path / "train-000001.tar"
    data = path.read_bytes()
    path.unlink() if damage == "gone" else path.write_bytes(
        data[:-512] if damage == "shorter" else data + bytes(512)
    )
    summary, _ = run(spec(tmp_path))
    assert summary is not None
    assert summary.made_now == 1
    assert path.read_bytes() == data


def test_another_split_joins_what_is_there(tmp_path: Path) -> None:
    """Keeps away: an account that forgets the splits of earlier runs."""
    run(spec(tmp_path, 4))
    summary, _ = run(spec(tmp_path, shards=job_factory.shards(3, 4, "val")))
    assert summary is not None
    assert (summary.planned, summary.samples, summary.shards) == (3, 3, 1)
    record = provenance.read(str(tmp_path))
    assert record is not None
    assert record["planned"] == {"train-000000": 4, "val-000000": 3}
    assert record["shards"].keys() == {"train-000000", "val-000000"}


def test_a_stopped_job_says_how_far_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: an interrupted run whose finished shards are in no account."""
    whole = engine.run

    def stopped(*arguments: Any) -> Iterator[str]:
        shards = whole(*arguments)
        yield next(shards)
        os.kill(os.getpid(), signal.SIGTERM)
        yield next(shards)

    monkeypatch.setattr(engine, "run", stopped)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(JobFailed, match="stopped; 1 of 3 shards"):
        run(spec(tmp_path))
    assert signal.getsignal(signal.SIGTERM) is before
    record = provenance.read(str(tmp_path))
    assert record is not None
    assert record["complete"] is False
    assert record["shards"].keys() == {"train-000000"}
    monkeypatch.setattr(engine, "run", whole)
    summary, _ = run(spec(tmp_path))
    assert summary is not None
    assert (summary.made_now, summary.samples) == (2, 10)


def test_a_failed_job_says_how_far_it_came(tmp_path: Path) -> None:
    with pytest.raises(JobFailed, match="pair 8; 2 of 4 shards are done"):
        run(spec(tmp_path, 14, faults={"fails": range(4, 14)}))
    assert not list(tmp_path.glob(".*.tmp"))


def test_warnings_are_shown_on_the_console_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a store that fails, named in Ray's log alone, where standard error goes."""
    made = engine.run

    def warned(*arguments: Any) -> Iterator[Done]:
        logging.getLogger("cc_prep.storage.object_store").warning("s3://b/x: failed twice")
        yield from made(*arguments)

    monkeypatch.setattr(engine, "run", warned)
    assert "s3://b/x: failed twice\n" in run(spec(tmp_path))[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"depth": 3}}, "depth: 2 → 3"),
        ({"weights": {"net": "other"}}, "weights.net: abc → other"),
    ],
)
def test_other_settings_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    """Keeps away: a folder in which half of the shards were made in another way."""
    run(spec(tmp_path, 4))
    with pytest.raises(UserError, match=message):
        run(spec(tmp_path, 10, **change))
    assert not (tmp_path / "train-000001.tar").exists()


def test_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(spec(tmp_path, 4))
    monkeypatch.setattr(engine, "start", lambda: (Resources(2, 1),))
    with pytest.raises(UserError, match="device: cpu → cuda"):
        job.run(spec(tmp_path), Options(device="gpu"), Console(file=io.StringIO()))


def test_a_job_without_a_network_takes_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: one worker on one core beside an idle GPU, where every core could work."""
    for resources in (Resources(64, 1), Resources(64, 0)):  # the second resumes on another machine
        monkeypatch.setattr(engine, "start", lambda free=resources: (free,))
        job_spec = spec(tmp_path, threads=2, has_network=False)
        console = Console(file=(out := io.StringIO()))
        job.run(job_spec, Options(dry_run=True), console)
        assert "32 on cpu, 2 threads each" in out.getvalue()
        job.run(job_spec, Options(), console)
        assert (provenance.read(str(tmp_path)) or {})["settings"]["device"] == "cpu"


def test_shards_of_unknown_origin_are_refused(tmp_path: Path) -> None:
    for name, refused in (("notes.tar", False), ("train-000000.txt", False),
                          ("train-000000.tar", True)):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"")
        if refused:
            with pytest.raises(UserError, match="has shards but no"):
                run(spec(folder))
        else:
            assert run(spec(folder))[0] is not None


def test_a_held_folder_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "start", lambda: pytest.fail("started"))
    with lock.locked(str(tmp_path)), pytest.raises(UserError, match="at work"):
        run(spec(tmp_path))


def test_changed_data_is_refused_before_ray_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: half a minute until "the pairs changed", which does not say that 6 became 10."""
    settings = manifest.load("own", root="/data")
    run(spec(tmp_path, 3, data=sources.of_pairs(settings, job_factory.shards(3, 4))))
    monkeypatch.setattr(engine, "start", lambda: pytest.fail("started"))
    others = [job_factory.of_pairs("train", 0, [job_factory.pair(9 - i) for i in range(4)], 10)]
    data = sources.of_pairs(settings, others)
    old = dict(provenance.read(str(tmp_path)) or {}, data={**data, "pairs": {"train": 3}})
    provenance.write(str(tmp_path), old)
    with pytest.raises(UserError, match="train had 3 pairs then and has 10 now"):
        run(spec(tmp_path, shards=others, data=data))


@pytest.mark.parametrize(("free", "fits"), [(1100 * 6, True), (1100 * 6 - 1, False)])
def test_room_on_the_disk_for_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, fits: bool
) -> None:
    """Keeps away: a resumed job that asks for the room of what is there already."""
    run(spec(tmp_path, 4))
    monkeypatch.setattr(storage, "free_bytes", lambda folder: free)
    assert job.DISK_MARGIN == 1.1
    if fits:
        assert run(spec(tmp_path, 10))[0] is not None
    else:
        with pytest.raises(UserError, match=r"about 6\.6 kB needed, 6\.6 kB free"):
            run(spec(tmp_path, 10))


def test_a_store_that_knows_no_free_bytes_is_no_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda folder: None)
    assert run(spec(tmp_path))[0] is not None
    assert "free" not in run(spec(tmp_path), dry_run=True)[1]


def test_a_dry_run_writes_nothing_and_says_what_is_left(tmp_path: Path) -> None:
    run(spec(tmp_path, 4))
    before = sorted(path.name for path in tmp_path.iterdir())
    summary, output = run(spec(tmp_path, 10), dry_run=True)
    assert summary is None
    assert "pairs    10 in 3 shards of up to 4\n" in output
    assert "to do    6 pairs in 2 shards\n" in output
    assert "disk     about 10.0 kB, 4.0 kB a shard, " in output
    assert "excluded" not in output
    assert "weights  net abc\n" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_plan_of_one_shard_says_its_size_once(tmp_path: Path) -> None:
    plan = run(spec(tmp_path, 4), dry_run=True)[1]
    assert "disk     about 4.0 kB, " in plan
    assert "a shard" not in plan


def test_excluded_pairs_are_told(tmp_path: Path) -> None:
    """Keeps away: a data set that is smaller than its owner knows, without a word."""
    exclude = {"file": "out.csv", "pairs": {"train": 1200, "val": 34}}
    smaller = spec(tmp_path, settings={"exclude": exclude})
    note = "1,234 pairs of the data, by out.csv\n"
    assert f"excluded {note}" in run(smaller, dry_run=True)[1]
    assert f"excluded: {note}" in run(smaller)[1]
    assert "excluded" not in run(spec(tmp_path / "all"))[1]


def test_rejects_are_retried_when_asked(tmp_path: Path) -> None:
    run(spec(tmp_path, faults={"rejects": [1, 5]}))
    summary, _ = run(spec(tmp_path, faults={"rejects": [5]}))
    assert summary is not None
    assert (summary.made_now, summary.rejected) == (0, 2)
    summary, _ = run(spec(tmp_path, faults={"rejects": [5]}), retry_rejects=True)
    assert summary is not None
    assert (summary.made_now, summary.rejected, summary.samples) == (2, 1, 9)
    assert [reject.id for reject in rejects.read(str(tmp_path))] == ["0005"]


@pytest.mark.parametrize(
    ("rejected", "share", "too_many"),
    [(0, 0.0, False), (1, 0.0, True), (1, 0.01, False), (2, 0.01, True), (29, 0.29, False)],
)
def test_how_many_rejects_are_too_many(rejected: int, share: float, too_many: bool) -> None:
    summary = Summary("f", 100, 100 - rejected, rejected, 1, 1.0, 1, 1)
    assert summary.too_many_rejects(share) is too_many


def test_only_indexed_formats_have_an_index(tmp_path: Path) -> None:
    run(spec(tmp_path / "a"))
    assert not (tmp_path / "a" / training_shards.INDEX).exists()
    run(spec(tmp_path / "b", format=training_shards.FORMAT))
    rows = training_shards.read_index(str(tmp_path / "b"))
    assert [row["key"] for row in rows] == [job_factory.pair(i).key for i in range(10)]
    done = State(str(tmp_path / "a")).done()["train-000000"]
    assert done.index == [], "formats without an index note no rows of one"


def failing(number: int) -> Callable[[], None]:
    def fail() -> None:
        with job._writable("out"):
            raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.EACCES, UserError, r"cannot write there \(Permission denied\)"),
        (errno.EROFS, UserError, "cannot write there"),
        (errno.ENOTDIR, UserError, "cannot write there"),
        (errno.ENOSPC, JobFailed, "the disk is full"),
        (errno.EIO, OSError, "Input/output error"),
    ],
)
def test_what_the_output_place_refuses(number: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        failing(number)()


def test_an_error_that_is_no_refusal_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), job._writable(str(tmp_path)):
        raise ZeroDivisionError


def test_temporaries_of_killed_runs_go(tmp_path: Path) -> None:
    run(spec(tmp_path, 4))
    for folder in (tmp_path, tmp_path / ".state"):
        with storage.write_whole(str(folder / "x")) as file:
            file.write(b"half")
            [temporary] = [p for p in folder.iterdir() if p.name not in ("x",) and "x" in p.name
                           and p.suffix == ".tmp"]  # fmt: skip
            left = temporary.read_bytes()
        (folder / temporary.name).write_bytes(left)
        (folder / "x").unlink()
    run(spec(tmp_path, 4))
    assert not list(tmp_path.glob("**/*.tmp"))
    assert json.loads((tmp_path / ".state/plan.json").read_text()) == {"train-000000": 4}


def test_a_shard_that_does_not_come_back_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: shards that are lost without a word, and exit code 0."""
    whole = engine.run

    def forgetful(shards: list[PlannedShard], *arguments: Any) -> Iterator[Done]:
        yield from whole(shards[:1], *arguments)

    monkeypatch.setattr(engine, "run", forgetful)
    message = "2 shards did not come back from the workers: train-000001, train-000002; 1 of 3"
    with pytest.raises(JobFailed, match=message):
        run(spec(tmp_path))
    record = provenance.read(str(tmp_path))
    assert record is not None
    assert record["complete"] is False


def test_an_account_does_not_depend_on_what_the_driver_sees_of_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a job that counts half of its shards, since NFS lists a folder as it was."""
    run(spec(tmp_path / "other"))
    real, old = storage.list_files, {}

    def stale(folder: str, suffix: str = "") -> list[str]:
        names = old.setdefault(folder, real(folder))
        return [name for name in names if name.endswith(suffix)]

    monkeypatch.setattr(storage, "list_files", stale)
    summary, _ = run(spec(tmp_path / "out"))
    assert summary is not None
    assert (summary.samples, summary.shards, summary.made_now) == (10, 3, 3)
    records = [(tmp_path / name / "provenance.json").read_text() for name in ("out", "other")]
    assert records[0] == records[1]


def test_a_dry_run_refuses_what_a_run_refuses(tmp_path: Path) -> None:
    """Keeps away: a dry run that says all is well, where the run itself is then refused."""
    run(spec(tmp_path))
    with pytest.raises(UserError, match="larger --limit"):
        run(spec(tmp_path, 6), dry_run=True)
    with pytest.raises(UserError, match="free"):
        run(spec(tmp_path / "new", bytes_a_pair=10**15), dry_run=True)


def test_a_dry_run_tries_whether_its_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a plan of days for a bucket that does not exist, or a folder that is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file, not a folder"):
        run(spec(tmp_path / "file"), dry_run=True)
    written: list[str] = []
    monkeypatch.setattr(storage, "create_json", lambda path, value: written.append(path))
    monkeypatch.setattr(storage, "remove", written.remove)
    job._try_folder("s3://bucket/out/shards")
    assert written == [], "nothing is left"

    def refuse(path: str, value: object) -> None:
        raise UserError(f"{path}: The specified bucket does not exist", "Create the bucket first")

    monkeypatch.setattr(storage, "create_json", refuse)
    with pytest.raises(UserError, match="bucket does not exist"):
        job._try_folder("s3://bucket/out/shards")


def test_a_dry_run_counts_the_rejects_to_retry(tmp_path: Path) -> None:
    run(spec(tmp_path, faults={"rejects": [1, 5]}))
    assert "to do    0 pairs in 0 shards\n" in run(spec(tmp_path), dry_run=True)[1]
    output = run(spec(tmp_path), dry_run=True, retry_rejects=True)[1]
    assert "to do    8 pairs in 2 shards\n" in output
