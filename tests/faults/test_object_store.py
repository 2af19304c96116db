"""Jobs and trainings on `s3://`: a real HTTP endpoint, with faults between it and us."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
import s3fs

from cc_prep import storage
from cc_prep.errors import StoreFailed, StoreRefused, UserError
from cc_prep.formats import rejects
from cc_prep.storage import object_store
from tests.commands import Done, cc_prep, cc_train, without_ray
from tests.faults import bad_store, processes, tries

JOB = (
    "--set", "interpolate.method=crossfade", "--set", "interpolate.depth=2",
    "--set", "image_size=48", "--set", "shards.pairs_per_shard=2", "--workers", "1",
)  # fmt: skip
TRAIN = (
    "network.multipliers=[1,1,1]", "network.codes=32", "network.latent=8", "network.code_width=8",
    "data.crop=32", "data.validation_frames=2", "weights.discriminator_channels=8",
    "loop.batch_size=4", "loop.precision=float32", "loop.threads=1", "loop.log_every=1",
    "loop.loader_workers=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def store() -> Iterator[bad_store.Store]:
    with bad_store.running() as faulty_store:
        yield faulty_store


@pytest.fixture(autouse=True)
def quiet(store: bad_store.Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(object_store, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(object_store, "_silent", set())
    monkeypatch.setattr(object_store, "MAX_PAUSE", 0.2)  # of a random part, too
    # The pauses of the store's client, of a random part of 1 s, 2 s, 4 s …
    monkeypatch.setattr("botocore.retryhandler.random", SimpleNamespace(random=lambda: 0.01))
    yield
    store.fail(0)
    s3fs.S3FileSystem.clear_instance_cache()  # of clients with a test's time limits


def prepare(*arguments: object) -> Done:
    """`cc-prep` and its workers in this process, whose pauses are short."""
    with without_ray():
        return cc_prep(*arguments)


def contents(folder: str) -> dict[str, bytes]:
    names = [n for n in storage.list_files(folder) if n.endswith((".tar", ".parquet"))]
    return {name: storage.read_bytes(storage.join(folder, name)) for name in names}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> Path:
    out = tmp_path_factory.mktemp("local") / "out"
    done = prepare("interpolate", "synth", "--root", synth_root, "--out", out, *JOB)
    assert done.returncode == 0, done.stderr
    return out / "sequences"


@pytest.fixture(scope="module")
def far_root(store: bad_store.Store, synth_root: Path) -> str:
    """The data set in the store."""
    root = "s3://bucket/data"
    for file in synth_root.rglob("*.*"):
        if file.is_file():
            storage.write_bytes(f"{root}/{file.relative_to(synth_root)}", file.read_bytes())
    return root


@pytest.mark.parametrize("fault", bad_store.FAULTS)
def test_every_request_is_tried_again(store: bad_store.Store, fault: str) -> None:
    """A third of all requests meets the fault; what is written and read is whole all the same.

    By our tries and those of the store's client; `test_store_calls.py` counts ours.
    """
    store.fail(0.3, (fault,))
    data = os.urandom(300_000)
    for number in range(tries(4)):
        path = f"s3://bucket/{fault.replace(' ', '-')}/{number % 50}.bin"
        storage.write_bytes(path, data)
        assert storage.read_bytes(path) == data
        assert storage.read_range(path, 1000, 70_000) == data[1000:71_000]
        with storage.open_read(path) as file:
            assert file.read(200_000) + file.read() == data
        assert storage.size(path) == len(data)
        storage.remove(path)
        assert not storage.exists(path)
    assert store.done[fault] > 0
    print(dict(store.done))


def test_what_is_not_there_is_no_fault(store: bad_store.Store) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read_bytes("s3://bucket/nothing")
    assert storage.list_files("s3://bucket/nowhere") == []
    assert sum(store.done.values()) < 10, "an answer was asked for again and again"


@pytest.mark.parametrize(
    ("fault", "error"), [("cut request", "ClientError|EndpointConn|Closed"), ("silent", "Timeout")]
)
def test_a_store_that_stays_broken_ends_with_one_line(
    store: bad_store.Store, monkeypatch: pytest.MonkeyPatch, fault: str, error: str
) -> None:
    monkeypatch.setattr(object_store, "TRIES", 2)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", 0.3)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    store.fail(1.0, (fault,))
    message = rf"s3://bucket/x: the store failed 2 times, the last with .*({error})"
    with pytest.raises(StoreFailed, match=message):
        storage.write_bytes("s3://bucket/x", b"x")
    assert store.done[fault] >= 2


def test_a_silent_store_is_given_up_after_five_minutes(
    store: bad_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: half an hour before the error, since the store's client makes each request again
    in each of our tries. Its wait for an answer is 15 s, which is shortened here.
    """
    wait = s3fs.S3FileSystem.read_timeout
    monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", 0.2)
    s3fs.S3FileSystem.clear_instance_cache()
    store.fail(1.0, ("silent",))
    with pytest.raises(StoreFailed, match=r"the store failed 3 times, the last with .*Timeout"):
        storage.read_bytes("s3://bucket/x")
    assert store.done["silent"] * wait <= 5 * 60


def test_a_part_of_an_upload_is_sent_again_alone(
    store: bad_store.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a shard of which all is sent again, since one part of it met a fault."""
    monkeypatch.setattr(object_store, "TRIES", 1)
    monkeypatch.setattr(object_store, "LARGE", 0)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    store.fail(0.4, ("cut request",), seed=1)
    storage.write_bytes("s3://bucket/x", b"x" * 1000)
    assert store.done["cut request"] > 0


@pytest.mark.parametrize(
    ("path", "endpoint", "message"),
    [
        ("s3://Bad_Bucket!/x", "", r"nvalid bucket name"),
        ("s3://bucket/x", "http://no-such-host.invalid", r"no-such-host"),
        ("s3://bucket/x", "localhost:9000", r"Invalid endpoint"),
    ],
)
def test_a_mistyped_address_is_refused_at_once(
    store: bad_store.Store,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    endpoint: str,
    message: str,
) -> None:
    """Keeps away: a minute of silence, and exit code 1 without a remedy."""
    monkeypatch.setattr(object_store, "_reached", set())
    waits: list[float] = []
    real, ours = time.sleep, threading.current_thread()

    def sleep(seconds: float) -> None:  # Ray's threads of other tests sleep as well
        waits.append(seconds) if threading.current_thread() is ours else real(seconds)

    monkeypatch.setattr("tenacity.nap.time.sleep", sleep)
    if endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreRefused, match=rf"^{path}: .*{message}.*Correct the bucket's name"):
        storage.read_bytes(path)
    assert waits == []


def test_no_keys_no_bucket_and_no_such_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"bucket does not exist\. Create the bucket first"):
        storage.write_bytes("s3://other-bucket/x", b"x")
    with pytest.raises(UserError, match="nostore"):
        storage.read_bytes("nostore://bucket/x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(UserError, match="Give the store's keys"):
        storage.write_bytes("s3://bucket/x", b"x")
    s3fs.S3FileSystem.clear_instance_cache()


def test_keys_that_expired_end_a_job_and_reject_no_pair(
    store: bad_store.Store, far_root: str
) -> None:
    """Keeps away: "cc-prep: The provided token has expired.", without a path and a remedy; rejects
    of all pairs that are left."""
    store.fail(1.0, ("expired",))
    with pytest.raises(UserError, match=r"^s3://bucket/x: .*ExpiredToken.*\. Give keys"):
        storage.read_bytes("s3://bucket/x")
    store.fail(0)
    out = "s3://bucket/refused-out"
    arguments = ("interpolate", "synth", "--root", far_root, "--out", out, "--split", "val", *JOB)
    store.refused = ".png"
    done = prepare(*arguments)
    store.refused = ""
    assert done.returncode == 2
    assert "png: The provided token has expired. (ExpiredToken). Give keys" in done.stderr
    assert not storage.exists(f"{out}/sequences/rejects.parquet") or not rejects.read(
        f"{out}/sequences"
    )
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr


def test_the_mark_of_a_folder_is_no_file(store: bad_store.Store) -> None:
    """Keeps away: "images/images has no ending of an image" of a folder that a console made."""
    s3 = boto3.client("s3")
    s3.put_object(Bucket=bad_store.BUCKET, Key="marked/images/", Body=b"")
    storage.write_bytes("s3://bucket/marked/images/a.png", b"a")
    assert storage.list_files("s3://bucket/marked/images") == ["a.png"]
    assert storage.sizes("s3://bucket/marked/images") == {"a.png": 1}
    assert storage.list_folders("s3://bucket/marked") == ["images"]
    assert storage.list_files("s3://bucket/marked") == []


def test_a_job_writes_the_same_bytes_through_faults(
    store: bad_store.Store, local: Path, far_root: str
) -> None:
    """The data set lies there too. `test_killed_and_resumed` has the real processes."""
    for number in range(tries(1)):
        store.fail(0.1, seed=number)
        out = f"s3://bucket/job{number}"
        done = prepare("interpolate", "synth", "--root", far_root, "--out", out, *JOB)
        assert done.returncode == 0, done.stderr
        assert sum(store.done.values()) > store.done["none"] > 0
        print(number, dict(store.done))
        store.fail(0)
        assert contents(f"{out}/sequences") == contents(str(local))
        assert cc_prep("verify", out).returncode == 0


def test_killed_and_resumed(store: bad_store.Store, local: Path, synth_root: Path) -> None:
    out = "s3://bucket/killed"
    arguments = ["interpolate", "synth", "--root", str(synth_root), "--out", out, *JOB]
    store.fail(0.05)
    # A fast machine would be done before the kill: the last shard does not get through.
    store.held = max(name for name in contents(str(local)) if name.endswith(".tar"))
    job = processes.start_alone(*arguments)
    while not [n for n in storage.list_files(f"{out}/sequences") if n.endswith(".tar")]:
        time.sleep(0.5)  # to ask the store costs this process as much as the job
        assert job.poll() is None, "it ended before it could be killed"
    job.kill()
    job.communicate()
    store.held = ""
    assert 1 <= len(contents(f"{out}/sequences")) < len(contents(str(local)))
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr
    store.fail(0)
    assert contents(f"{out}/sequences") == contents(str(local))


def test_a_second_job_is_refused_there_too(store: bad_store.Store) -> None:
    from pipelines.state import lock

    message = "a job is at work there"
    with lock.locked("s3://bucket/locked"), pytest.raises(UserError, match=message):
        lock.refuse_if_held("s3://bucket/locked")
    lock.refuse_if_held("s3://bucket/locked")


def test_of_jobs_that_start_together_one_gets_the_folder(store: bad_store.Store) -> None:
    """Keeps away: two jobs that both looked before either had written its lock."""
    program = """
import sys
from pipelines.state import lock
try:
    with lock.locked('s3://bucket/together'):
        print('mine', flush=True); sys.stdin.read()
except Exception as error:
    print(error)
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    jobs = [subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) for _ in range(3)]
    limit = threading.Timer(300, lambda: [job.kill() for job in jobs])
    limit.start()
    try:
        # Who has the lock holds it until all three have said a line, however slow one starts.
        lines = [job.stdout.readline().strip() for job in jobs]
        assert lines.count("mine") == 1, lines
        assert sum("at work" in line for line in lines) == 2
        assert [job.communicate()[0] for job in jobs] == [""] * 3
    finally:
        limit.cancel()
        for job in jobs:
            job.kill()


def test_a_training_reads_its_shards_through_faults(
    store: bad_store.Store, local: Path, tmp_path: Path
) -> None:
    far = "s3://bucket/train/sequences"
    for file in local.iterdir():
        if file.is_file():
            storage.write_bytes(f"{far}/{file.name}", file.read_bytes())
    logs = []
    for name, shards in (("local", str(local)), ("far", far)):
        store.fail(0.1, seed=1)
        done = cc_train(
            "vqgan", "--shards", f"{shards}/train-*.tar", "--out", tmp_path / name, "--steps", 4,
            *(part for value in TRAIN for part in ("--set", value)),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        logs.append((tmp_path / name / "log.jsonl").read_text())
    assert logs[0] == logs[1]
    assert sum(store.done.values()) > store.done["none"] > 0
