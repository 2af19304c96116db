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
        said = f"process {os.getpid()} on {socket.gethostname()}"
        with pytest.raises(UserError, match=said), lock.locked(folder):
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
