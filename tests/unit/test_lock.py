"""One job at a time in a folder; a dead job's lock is no obstacle."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from pipelines import lock


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
from pipelines import lock
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
