"""Starting Ray: whatever goes wrong is said on the standard error that the user sees."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
import ray

from cc_prep.errors import JobFailed, UserError
from pipelines import engine
from pipelines.cluster.pool import Pool
from pipelines.timing import Speed, Trial


@pytest.mark.parametrize(
    ("address", "error", "expected", "message"),
    [
        (None, Exception("The current node timed out\nmore"), JobFailed, "did not start .The curr"),
        (None, RuntimeError(), JobFailed, r"did not start .RuntimeError\)"),
        ("auto", ConnectionError("nobody there"), UserError, "no Ray at RAY_ADDRESS=auto .nobody"),
        (None, SystemExit(1), SystemExit, "1"),
    ],
)
def test_a_ray_that_does_not_start_is_said(
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    error: BaseException,
    expected: type[BaseException],
    message: str,
) -> None:
    """Keeps away: exit code 1 and a message that went into Ray's log."""

    def init(**options: Any) -> NoReturn:
        assert os.fstat(2).st_ino != before, "Ray's own output goes to the log"
        assert os.environ["MALLOC_ARENA_MAX"] == "1", "its workers' memory grows by an arena each"
        assert os.environ[engine.NICENESS] == "0", "they stand still beside other work"
        raise error

    before = os.fstat(2).st_ino
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(expected, match=message):
        engine.start()
    assert os.fstat(2).st_ino == before


@pytest.mark.parametrize(
    ("address", "error", "expected", "message"),
    [
        (None, KeyboardInterrupt(), KeyboardInterrupt, "^$"),
        (None, Exception("the node is gone\nmore"), JobFailed, "did not start .the node is gone"),
        ("auto", Exception("System error"), UserError, "no Ray at RAY_ADDRESS=auto .System"),
    ],
)
def test_an_error_while_free_resources_are_counted_is_said(
    monkeypatch: pytest.MonkeyPatch,
    address: str | None,
    error: BaseException,
    expected: type[BaseException],
    message: str,
) -> None:
    """Keeps away: a command that Ctrl-C ends without a word, and a Ray that stays behind it."""

    def free_resources() -> NoReturn:
        assert os.fstat(2).st_ino != before, "Ray's own output goes to the log"
        raise error

    ended = []
    before = os.fstat(2).st_ino
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: None)
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    monkeypatch.setattr(engine, "free_resources", free_resources)
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    try:
        with pytest.raises(expected, match=message):
            engine.start()
        assert os.fstat(2).st_ino == before
        assert ended == [True]
    finally:
        engine.stop()


def test_addresses_of_ray_client_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a job that connects, and fails with Ray's traceback at the free resources."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:10001")
    with pytest.raises(UserError, match=r"not run through Ray Client\. Give HOST:PORT"):
        engine.start()


@pytest.mark.parametrize(
    ("address", "gpus", "variables"),
    [
        ("10.0.0.1:6379", 0.0, {"MALLOC_ARENA_MAX": "1"}),
        ("10.0.0.1:6379", 0.5, {}),
        (None, 0.0, {}),
    ],
)
def test_the_environment_of_workers(
    monkeypatch: pytest.MonkeyPatch, address: str | None, gpus: float, variables: dict[str, str]
) -> None:
    """Keeps away: workers of a cluster whose memory grows by an arena a thread, and GPU workers
    that never give memory back. Those of a Ray of our own have it from Ray's start."""
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    environment = engine._environment(Pool(2, 1, gpus))
    assert environment.get("runtime_env", {"env_vars": {}}) == {"env_vars": variables}


def test_a_worker_that_is_late_does_not_count_as_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: three minutes of waiting for the last worker in the estimate of all others."""
    clock, cancelled = [0.0], list[object]()

    def wait(running: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        seconds = min(11.0 if len(running) > 1 else 1e6, timeout)
        clock[0] += seconds
        return ([], running) if seconds == timeout else (running[:1], running[1:])

    task = SimpleNamespace(remote=lambda shard, *arguments: shard)
    trial = Trial(1.0, Speed(64, 5.0), {}, 8.0)
    monkeypatch.setattr(engine.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(ray, "remote", lambda **options: lambda function: task)
    monkeypatch.setattr(ray, "wait", wait)
    monkeypatch.setattr(ray, "cancel", lambda one, force: cancelled.append(one))
    monkeypatch.setattr(ray, "get", lambda finished: [trial for _ in finished])
    pool = SimpleNamespace(workers=3, cpus=1, gpus=0, device="cpu")
    monkeypatch.setattr(engine, "_environment", lambda pool: {})
    shards: Any = ["a", "b", "c"]
    trials, starting = engine.try_out(shards, cast(Any, None), cast(Any, pool))
    assert (len(trials), cancelled) == (2, ["c"])
    assert starting == 22.0 - 8.0
