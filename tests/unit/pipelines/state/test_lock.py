"""One job at a time in a folder; a dead job's lock is no obstacle."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cc_prep import storage
from cc_prep.errors import UserError
from pipelines.state import lock


def test_second_job_is_refused_with_the_firsts_name(tmp_path: Path) -> None:
    folder = str(tmp_path)
    with lock.locked(folder):
        assert lock.holder(folder).pid == os.getpid()
        message = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(UserError, match=message), lock.locked(folder):
            pass
    assert lock.holder(folder) is None
    with lock.locked(folder):
        pass


def test_a_killed_jobs_lock_is_taken_over(tmp_path: Path) -> None:
    code = f"""
import time
from pipelines.state import lock
with lock.locked({str(tmp_path)!r}):
    print("in", flush=True)
    time.sleep(60)
"""
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert job.stdout.readline() == b"in\n"
    with pytest.raises(UserError), lock.locked(str(tmp_path)):
        pass
    job.kill()
    job.wait()
    job.stdout.close()
    with lock.locked(str(tmp_path)):
        pass


@pytest.mark.parametrize(("age", "alive"), [(0, True), (1000, False)])
def test_another_hosts_lock_counts_while_it_beats(tmp_path: Path, age: int, alive: bool) -> None:
    (tmp_path / ".state").mkdir()
    holder = {"host": "elsewhere", "pid": 1, "born": "1", "beat": time.time() - age}
    (tmp_path / ".state" / "lock.json").write_text(json.dumps(holder))
    assert (lock.holder(str(tmp_path)) is not None) == alive


@pytest.mark.parametrize("off", [-86400, 86400])
@pytest.mark.parametrize("beats", [True, False])
def test_a_host_with_another_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: int, beats: bool
) -> None:
    """Keeps away: a living job's lock taken over, and a dead one's kept for a day."""
    monkeypatch.setattr(lock, "WATCH_SECONDS", 0.5)
    (tmp_path / ".state").mkdir()
    place, stop = tmp_path / ".state/lock.json", threading.Event()

    def write() -> None:
        beat = {"host": "elsewhere", "pid": 1, "born": "1", "beat": time.time() + off}
        storage.write_json(str(place), beat)

    def beating() -> None:
        while not stop.wait(0.1):
            write()

    write()
    thread = threading.Thread(target=beating)
    if beats:
        thread.start()
        with pytest.raises(UserError, match="process 1 on elsewhere"), lock.locked(str(tmp_path)):
            pass
        stop.set()
        thread.join()
    else:
        with lock.locked(str(tmp_path)):
            pass


def test_a_reused_process_number_is_not_the_holder(tmp_path: Path) -> None:
    (tmp_path / ".state").mkdir()
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "born": "x", "beat": time.time()}
    (tmp_path / ".state" / "lock.json").write_text(json.dumps(holder))
    assert lock.holder(str(tmp_path)) is None


def test_works_on_an_object_store() -> None:
    place = "memory://lock-test"
    with lock.locked(place), pytest.raises(UserError), lock.locked(place):
        pass
    assert lock.holder("memory://lock-test") is None


def test_how_long_a_silent_holder_counts() -> None:
    """Keeps away: a job of another host whose lock is taken over between two of its beats."""
    assert lock.HEARTBEAT_SECONDS == 10
    assert lock.STALE_SECONDS == 90, "several beats may be late"
    assert lock.WATCH_SECONDS == 25, "two beats and a half: one may be late"
    assert lock.LOOK_AGAIN_SECONDS == 1
    now = time.time()
    for age, alive in ((80, True), (-80, True), (100, False), (-100, False)):
        assert lock.Holder("elsewhere", 1, "1", now - age).alive() is alive, age


def test_the_lock_is_renewed_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a long job whose lock looks abandoned, after its first failed beat."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    whole, failed = storage.write_json, []

    def failing_once(*arguments: object, **options: object) -> None:
        if not failed:
            failed.append(arguments)
            raise OSError(28, "No space left on device")
        whole(*arguments, **options)  # type: ignore[arg-type]

    with lock.locked(str(tmp_path)):
        first = lock.holder(str(tmp_path))
        monkeypatch.setattr(storage, "write_json", failing_once)
        deadline = time.monotonic() + 30
        while lock.holder(str(tmp_path)) == first and time.monotonic() < deadline:
            time.sleep(0.02)
        later = lock.holder(str(tmp_path))
    assert failed
    assert first is not None
    assert later is not None
    assert later.beat > first.beat
    assert (later.host, later.pid, later.born) == (first.host, first.pid, first.born)
    assert not (tmp_path / ".state/lock.json").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc")
def test_when_a_process_was_born() -> None:
    """Keeps away: another field of /proc, that changes while a process lives."""
    import psutil

    since_boot = psutil.Process().create_time() - psutil.boot_time()
    ticks = os.sysconf("SC_CLK_TCK")
    assert int(lock._born(os.getpid())) / ticks == pytest.approx(since_boot, abs=2)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert lock._born(ended.pid) == ""


def test_two_jobs_that_look_at_a_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: two jobs that both saw no lock in an object store, and both go on."""
    place = "memory://lock-race"
    other = {"host": "elsewhere", "pid": 1, "born": "1", "beat": time.time()}
    waited = []

    def overtaken(seconds: float) -> None:
        waited.append(seconds)
        storage.write_json(f"{place}/.state/lock.json", other)

    monkeypatch.setattr(lock.time, "sleep", overtaken)
    with pytest.raises(UserError, match="process 1 on elsewhere"), lock.locked(place):
        pass
    assert waited == [lock.LOOK_AGAIN_SECONDS]
    storage.remove(f"{place}/.state/lock.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"host": "a"}'])
def test_a_damaged_lock_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state/lock.json").write_text(text)
    assert lock.holder(str(tmp_path)) is None
    with lock.locked(str(tmp_path)):
        assert lock.holder(str(tmp_path)) is not None
