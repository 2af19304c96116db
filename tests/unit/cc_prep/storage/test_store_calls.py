"""How often a request to an object store is made before it counts as failed."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.memory import MemoryFileSystem

from cc_prep.errors import FileRefused, RejectedPair, StoreFailed, StoreRefused, UserError
from cc_prep.media import images
from cc_prep.storage import object_store

PATH = "memory://bucket/x"


class Failing:
    """A request that fails in this way so many times, and then is answered."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.calls = error, times, 0

    def __call__(self, fs: Any, key: str) -> str:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return key


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "LONGEST_PAUSE", 0.0)


@pytest.mark.parametrize("times", [0, 1, 8])
def test_eight_failures_cost_nothing(times: int) -> None:
    """Keeps away: a job that ends at the store's first error, which the store's client hides."""
    request = Failing(ConnectionError("reset"), times)
    assert object_store.call(PATH, request) == "/bucket/x"
    assert request.calls == times + 1


def test_the_ninth_failure_is_the_last() -> None:
    request = Failing(ConnectionError("reset"), 20)
    message = f"{PATH}: the store failed 9 times, the last with ConnectionError: reset"
    with pytest.raises(StoreFailed, match=f"^{message}$"):
        object_store.call(PATH, request)
    assert request.calls == 9


def test_three_failures_are_enough_where_each_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: half an hour before the error of a store that takes requests and never answers;
    and an upload that takes long and is not tried again, since its first try took all the time.
    """
    monkeypatch.setattr(object_store, "PATIENT_SECONDS", 0.0)
    request = Failing(ConnectionError("reset"), 20)
    with pytest.raises(StoreFailed, match="the store failed 3 times"):
        object_store.call(PATH, request)
    assert request.calls == 3
    assert object_store.call(PATH, Failing(ConnectionError("reset"), 2)) == "/bucket/x"


def denied(code: str, message: str) -> PermissionError:
    """A store's refusal, as s3fs raises it."""
    error = PermissionError(message)
    error.__cause__ = ClientError({"Error": {"Code": code}}, "GetObject")
    return error


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (FileNotFoundError("x"), FileNotFoundError, "x"),
        (UserError("x"), UserError, "x"),
        (PermissionError("Forbidden"), FileRefused, f"{PATH}: Forbidden. Give keys that may"),
        (PermissionError(), FileRefused, f"{PATH}: permission denied"),
        (denied("AccessDenied", "Access Denied"), FileRefused, f"{PATH}: Access Denied"),
        (denied("ExpiredToken", "It expired"), StoreRefused, f"{PATH}: It expired .ExpiredToken."),
        (denied("InvalidAccessKeyId", "No"), StoreRefused, f"{PATH}: No .InvalidAccessKeyId."),
    ],
)
def test_an_answer_is_not_asked_for_again(
    error: Exception, kind: type[Exception], message: str
) -> None:
    """Keeps away: minutes of waiting for a file that is not there; "Access Denied" without the
    file's name, exit code 1."""
    request = Failing(error, 9)
    with pytest.raises(kind, match=message):
        object_store.call(PATH, request)
    assert request.calls == 1


def test_an_image_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: the reject "memory://bucket/x.png: None"; and a reject of every pair that is
    left, once a job's token has expired."""

    def refuse(code: str) -> None:
        request = Failing(denied(code, "No"), 9)
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, key: request(fs, key))

    refuse("AccessDenied")
    with pytest.raises(RejectedPair, match=f"^unreadable image: {PATH}: No$"):
        images.read_encoded(PATH)
    refuse("ExpiredToken")
    with pytest.raises(StoreRefused, match="ExpiredToken"):
        images.read_encoded(PATH)


def test_the_pauses_double_up_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: nine requests at once to a store that needs some seconds, or an error of one that
    is away for a minute."""
    pauses: list[float] = []
    here, sleep = threading.current_thread(), time.sleep

    def slept(seconds: float) -> None:
        if threading.current_thread() is not here:  # of other tests' servers
            sleep(seconds)
        else:
            pauses.append(seconds)

    monkeypatch.setattr(object_store, "LONGEST_PAUSE", 15.0)
    monkeypatch.setattr("tenacity.nap.time.sleep", slept)
    with pytest.raises(StoreFailed):
        object_store.call(PATH, Failing(ConnectionError("reset"), 20))
    assert len(pauses) == 8
    for pause, least in zip(pauses, (0.5, 1, 2, 4, 8, 15, 15, 15), strict=True):
        assert least <= pause <= least + 1, "up to a second of each is random"
    assert sum(pauses) >= 60
