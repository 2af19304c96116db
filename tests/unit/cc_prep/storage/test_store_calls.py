"""How often a request to an object store is made before it counts as failed."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.utils import infer_storage_options
from s3fs.errors import translate_boto_error

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
    monkeypatch.setattr(object_store, "MAX_PAUSE", 0.0)
    monkeypatch.setattr(object_store, "_silent", set())
    monkeypatch.setattr(object_store, "_named", set())


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


def test_a_store_that_fails_is_named_at_the_second_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keeps away: minutes without a word while a store does not answer; a line for each file."""
    said = []
    for times in (1, 5, 2, 2):
        object_store.call(PATH, Failing(ConnectionError("reset"), times))
        said.append(len(caplog.messages))
    assert said == [0, 1, 2, 3]  # a store that answered is named again
    assert caplog.messages[0] == (
        f"{PATH}: the store failed twice, the last with ConnectionError: reset; "
        "it is asked again for about a minute"
    )
    for _ in range(2):
        with pytest.raises(StoreFailed):
            object_store.call(PATH, Failing(ConnectionError("reset"), 20))
    assert len(caplog.messages) == 4


class ReadTimeoutError(Exception):
    """A request without an answer, as the client of S3 names it."""


def test_three_silent_tries_are_enough() -> None:
    """Keeps away: half an hour before the error of a store that takes requests and never answers;
    and an upload that takes long and is given up after a short outage, since its time counted.
    """
    assert object_store.call(PATH, Failing(ReadTimeoutError("silent"), 2)) == "/bucket/x"
    request = Failing(ReadTimeoutError("silent"), 20)
    with pytest.raises(StoreFailed, match="the store failed 3 times, the last with ReadTimeout"):
        object_store.call(PATH, request)
    assert request.calls == 3


def test_a_store_that_is_silent_is_given_up_at_once_until_it_answers() -> None:
    """Keeps away: twenty minutes before a job on such a store ends, since its account, its mark and
    its lock are each tried three times more."""
    for tries, words in (
        (3, "failed 3 times, the last with"),
        (1, "failed with"),
        (1, "failed with"),
    ):
        request = Failing(ReadTimeoutError("silent"), 20)
        with pytest.raises(StoreFailed, match=f"the store {words} ReadTimeoutError"):
            object_store.call(PATH, request)
        assert request.calls == tries
    assert object_store.call(PATH, Failing(ConnectionError("reset"), 8)) == "/bucket/x"
    assert object_store.call(PATH, Failing(ReadTimeoutError("silent"), 2)) == "/bucket/x"


def test_an_upload_that_took_long_is_tried_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a shard lost in an outage of seconds, since its first try took all the time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    request = Failing(ConnectionError("reset"), 8)

    def upload(fs: Any, key: str) -> str:
        now[0] += 3600.0
        return request(fs, key)

    assert object_store.call(PATH, upload) == "/bucket/x"
    assert request.calls == 9


@pytest.mark.parametrize(("size", "tries"), [(0, 1), (10**6, 1), (10**9, 5)])
def test_only_the_parts_of_an_upload_have_tries_of_their_own(size: int, tries: int) -> None:
    """Keeps away: all of a shard sent again, since one part of it met a fault."""
    tries_of_client: list[int] = []
    object_store.call(
        "s3://bucket/x", lambda fs, key: tries_of_client.append(fs.retries), upload=size
    )
    assert tries_of_client == [tries]


def answered(
    code: str, status: int, message: str = "No", operation: str = "GetObject"
) -> Exception:
    """A store's answer, as s3fs raises it."""
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return translate_boto_error(ClientError(response, operation))


def denied(code: str, message: str) -> Exception:
    return answered(code, 403, message)


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
        (answered("InvalidToken", 400), StoreRefused, f"{PATH}: No .InvalidToken.. Give keys"),
        (answered("TokenRefreshRequired", 400), StoreRefused, "TokenRefreshRequired.. Give keys"),
        (answered("KeyTooLongError", 400), FileRefused, f"{PATH}: No .* Give a shorter name"),
        (answered("AuthorizationHeaderMalformed", 400), StoreRefused, f"{PATH}: .*the region"),
        (answered("InvalidBucketName", 400), StoreRefused, f"{PATH}: No .InvalidBucketName.. Corr"),
        (answered("PermanentRedirect", 301), StoreRefused, f"{PATH}: No .PermanentRedirect.. Corr"),
        (answered("MethodNotAllowed", 405), FileRefused, f"{PATH}: No. Give keys that may"),
        (answered("NotImplemented", 501), StoreRefused, f"{PATH}: No .NotImplemented.. Correct"),
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


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("RequestTimeout", 400),
        ("IncompleteBody", 400),
        ("OperationAborted", 409),
        ("TooManyRequests", 429),
        ("SlowDown", 503),
        ("InternalError", 500),
    ],
)
def test_an_answer_that_may_be_another_is_asked_for_again(code: str, status: int) -> None:
    request = Failing(answered(code, status), 8)
    assert object_store.call(PATH, request) == "/bucket/x"


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize(
    ("answers", "kind", "message"),
    [
        ([denied("ExpiredToken", "It expired")], StoreRefused, "It expired .ExpiredToken.. Give"),
        ([answered("InvalidToken", 400)], StoreRefused, "No .InvalidToken.. Give keys"),
        ([denied("AccessDenied", "Denied")], FileRefused, "Denied. Give keys that may read it"),
        (
            [ConnectionError("reset"), denied("ExpiredToken", "It expired")],
            StoreRefused,
            "It expired .ExpiredToken.. Give keys",
        ),
    ],
)
def test_a_head_that_is_refused_is_explained_by_a_get(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    answers: list[Exception],
    kind: type[Exception],
    message: str,
) -> None:
    """Keeps away: a minute of tries, and an error without a remedy, since S3 answers a HEAD with
    an expired token by status 400 alone."""
    left = iter(answers)

    def get(fs: object, key: str, **limits: int) -> bytes:
        raise next(left)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", get)
    request = Failing(answered(str(status), status, "Bad Request", "HeadObject"), 20)
    with pytest.raises(kind, match=f"^{PATH}: {message}"):
        object_store.call(PATH, request)
    assert request.calls == len(answers)


def test_a_host_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a minute of tries for a mistyped endpoint; and a job that ends since the names
    of hosts could not be resolved for a moment."""

    def unknown(times: int) -> Failing:
        error = ConnectionError("cannot connect")
        error.__context__ = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return Failing(error, times)

    monkeypatch.setattr(object_store, "_reached", set())
    with pytest.raises(StoreRefused, match=f"^{PATH}: cannot connect. Correct .* the endpoint"):
        object_store.call(PATH, unknown(1))
    object_store.call(PATH, Failing(ConnectionError(), 0))
    assert object_store.call(PATH, unknown(8)) == "/bucket/x"


def test_an_image_that_may_not_be_read_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: the reject "memory://bucket/x.png: None"; and a reject of every pair that is
    left, once a job's token has expired."""

    def refuse(code: str) -> None:
        request = Failing(denied(code, "No"), 9)
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda fs, key, **_: request(fs, key))

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

    monkeypatch.setattr(object_store, "MAX_PAUSE", 15.0)
    monkeypatch.setattr("tenacity.nap.time.sleep", slept)
    with pytest.raises(StoreFailed):
        object_store.call(PATH, Failing(ConnectionError("reset"), 20))
    assert len(pauses) == 8
    for pause, least in zip(pauses, (0.5, 1, 2, 4, 8, 15, 15, 15), strict=True):
        assert least <= pause <= least + 1, "up to a second of each is random"
    assert sum(pauses) >= 60


def test_sftp_takes_no_option_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: sftp:// that fails nine times with a TypeError: fsspec's hands what it does not
    know to paramiko, whose `connect` has no such argument."""

    class Strict(MemoryFileSystem):
        def __init__(self, host: str, username: str | None = None, port: int = 22) -> None:
            super().__init__()
            assert (host, username, port) == ("host", "bob", 23)

        @staticmethod
        def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
            options = infer_storage_options(path)
            return {name: options[name] for name in ("host", "username", "port")}

    monkeypatch.setattr("fsspec.get_filesystem_class", lambda scheme: Strict)
    assert object_store.call("sftp://bob@host:23/d/x", lambda fs, key: "reached") == "reached"
