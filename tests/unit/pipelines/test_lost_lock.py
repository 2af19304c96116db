"""A job that slept, or was suspended, while another one took over its lock on an object store."""

from __future__ import annotations

import io
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cc_prep import storage
from cc_prep.errors import JobFailed
from pipelines import engine, job
from pipelines.state import lock
from pipelines.state.journal import Done
from tests import job_factory

FOLDER = "memory://lost-lock"
LOCK = f"{FOLDER}/.state/lock.json"
THEIRS = {"host": "elsewhere", "pid": 1, "id": "theirs"}


@pytest.fixture(autouse=True)
def workers_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    job_factory.work_in_this_process(monkeypatch)


def files() -> dict[str, bytes]:
    """All files of the folder, but for the lock and the marks of single runs."""
    names = [*storage.list_files(FOLDER)]
    names += [f".state/{name}" for name in storage.list_files(f"{FOLDER}/.state")]
    return {
        f"{FOLDER}/{name}": storage.read_bytes(f"{FOLDER}/{name}")
        for name in names
        if not name.endswith((".run.json", "lock.json"))
    }


def test_it_writes_nothing_more_and_says_who_took_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: two jobs that write into one folder; an account that hides what the other one
    made; the lock and the temporaries of the living one, removed by the one that woke up."""
    monkeypatch.setattr(lock, "HEARTBEAT_SECONDS", 0.02)
    whole, cleared, then = engine.run, list[str](), dict[str, bytes]()

    def taken_over(*arguments: Any) -> Iterator[Done]:
        shards = whole(*arguments)
        yield next(shards)
        storage.write_json(f"{FOLDER}/provenance.json", {"of": "the other job"})
        monkeypatch.setattr(storage, "remove_temporaries", cleared.append)
        then.update(files())
        while time.monotonic() - started < 30:  # a signal ends it
            # Again and again, as a beat under way may still put the own lock over it.
            storage.write_json(LOCK, {**THEIRS, "beat": time.time()})
            time.sleep(0.05)
        yield next(shards)

    monkeypatch.setattr(engine, "run", taken_over)
    spec = replace(job_factory.spec(tmp_path), folder=FOLDER)
    before = signal.getsignal(signal.SIGTERM)
    started = time.monotonic()
    words = f"{FOLDER}: this process was silent for so long that process 1 on elsewhere took over"
    with pytest.raises(JobFailed, match=words):
        job.run(spec, job.Options(device="cpu"), Console(file=io.StringIO()))
    assert time.monotonic() - started < 30, "nobody ended it"
    assert signal.getsignal(signal.SIGTERM) is before
    assert [path for path in then if path.endswith(".tar")] == [f"{FOLDER}/train-000000.tar"]
    assert files() == then
    assert storage.read_json(LOCK)["id"] == THEIRS["id"]
    assert cleared == []
