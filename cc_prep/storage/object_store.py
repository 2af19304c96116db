"""Object stores, reached through fsspec; only `storage` uses this.

Every request is made again, after growing pauses, before it counts as failed: a store that now and
then answers 500 or hangs up in the middle of an answer costs a job some seconds and nothing else.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential_jitter

from cc_prep.errors import FileRefused, UserError, named_line
from cc_prep.redaction import without_credentials
from cc_prep.storage import store_errors

TRIES = 9  # a minute of pauses: a store may be away for that long
FIRST_PAUSE, MAX_PAUSE = 0.5, 15.0
# A store that takes requests and never answers costs 15 s for each. The client of S3 makes one five
# times (botocore), and s3fs made that five times again in each of our tries: half an hour. Now s3fs
# asks once, and so many of our tries that end in silence are enough. A job that ends makes some
# requests more, for each of which one such try is enough until the store answers.
SILENT_TRIES = 3
# But the parts of a large upload are each made again by s3fs, since our next try sends all of them.
S3, S3FS_TRIES, PART_TRIES = ("s3", "s3a"), 1, 5
LARGE = 50 * 2**20  # bytes of an upload, from which on it may have parts
READ_AHEAD = 4 * 2**20
# The stores that are asked: what a stranger's file names is handed to no other part of fsspec, of
# which some run code (`reference`), other stores (`::` chains) or read any file (`local`).
HTTP, SFTP = ("http", "https"), ("sftp", "ssh")
SCHEMES = (
    *S3, *HTTP, "gs", "gcs", "az", "abfs", "abfss", "adl", "hdfs", "hf", *SFTP,
    "memory",  # of this process alone
)  # fmt: skip

T = TypeVar("T")
# The kinds of stores that have answered this process, and those given up for their silence since.
_reached, _silent = set[str](), set[str]()
_named = set[str]()  # those of which was said that they fail, until they answer
_log = logging.getLogger(__name__)


def call(path: str, action: Callable[[Any, str], T], upload: int = 0) -> T:
    """`action(file system, key)`, tried again when it fails. key: the path within the store.

    Raises FileNotFoundError as it is, FileRefused where the keys do not open this file,
    StoreRefused where the store does not accept the keys or the address, UserError where it cannot
    even be asked, and StoreFailed after the last try.

    Args:
        upload: Bytes that it sends.
    """
    scheme, kind = _scheme(path), _kind(path)
    tries_of_client = (PART_TRIES if upload >= LARGE else S3FS_TRIES) if scheme in S3 else 1

    def asked() -> T:
        fs, key = _file_system_of(path)  # which connects, to some stores
        if scheme in S3:
            fs.retries = tries_of_client
        try:
            return action(fs, key)
        except Exception as error:
            if scheme in HTTP:
                raise store_errors.told_by_http(error)  # noqa: B904
            raise store_errors.told_by_get(error, fs, key)  # noqa: B904 (its cause is the answer)

    ask = Retrying(
        stop=_patience(tries_of_client, 1 if kind in _silent else SILENT_TRIES),
        wait=wait_exponential_jitter(initial=FIRST_PAUSE, max=MAX_PAUSE),
        retry=retry_if_exception(lambda error: store_errors.may_pass(error, kind in _reached)),
        before_sleep=lambda state: _say_that_it_fails(path, kind, state),
        reraise=True,
    )
    try:
        result = ask(asked)
    except Exception as error:
        if store_errors.is_silent(error):
            _silent.add(kind)
        tries = int(ask.statistics["attempt_number"])
        raise store_errors.explained(path, error, tries, kind in _reached) from None
    _reached.add(kind)
    _silent.discard(kind)
    _named.discard(kind)
    return result


def _say_that_it_fails(path: str, kind: str, state: RetryCallState) -> None:
    """Logs a warning after the second failure in a row, once until the store answers."""
    error = state.outcome.exception() if state.outcome is not None else None
    if error is None or state.attempt_number != 2 or kind in _named:
        return
    _named.add(kind)
    _log.warning(
        "%s: the store failed twice, the last with %s; it is asked again for about a minute",
        without_credentials(path),
        without_credentials(named_line(error)),
    )


def _patience(tries_of_client: int, silent_tries: int) -> Callable[[RetryCallState], bool]:
    """When to give up. Only silence counts by the client's tries within one of ours: how long an
    action works before it fails says nothing of the store."""
    silent = 0

    def is_over(state: RetryCallState) -> bool:
        nonlocal silent
        if state.outcome is not None and store_errors.is_silent(state.outcome.exception()):
            silent += tries_of_client
        return state.attempt_number >= TRIES or silent >= silent_tries

    return is_over


def read_bytes(path: str, max_bytes: int) -> bytes:
    """A whole file, or its first `max_bytes` + 1 bytes if it has more."""
    return call(path, lambda fs, key: _start_of(fs, key, max_bytes + 1))


def _start_of(fs: Any, key: str, size: int) -> bytes:
    # A range, however long, spares s3fs from asking for the size first.
    try:
        return bytes(fs.cat_file(key, start=0, end=size))
    except Exception as error:
        if store_errors.is_of_empty_file(error):
            return b""
        raise


def read_many(paths: Sequence[str], max_bytes: int) -> list[bytes | None]:
    """Whole files of one store, asked for side by side; None for those that are not there.

    Of a file with more bytes the first `max_bytes` + 1.
    """
    if any(set(path) & set("*?[") for path in paths):  # which `cat` would take for patterns
        return [_read_if_there(path, max_bytes) for path in paths]

    def read(fs: Any, _: str) -> dict[str, Any]:
        keys = [fs._strip_protocol(path) for path in paths]
        answers = fs.cat(keys, on_error="return", start=0, end=max_bytes + 1)
        return {key: answers[key] for key in keys}

    contents: list[bytes | None] = []
    if not paths:
        return contents
    for path, answer in zip(paths, call(paths[0], read).values(), strict=True):
        if isinstance(answer, FileNotFoundError):
            contents.append(None)
        elif isinstance(answer, Exception):  # once more, alone, with the usual patience
            contents.append(_read_if_there(path, max_bytes))
        else:
            contents.append(bytes(answer))
    return contents


def _read_if_there(path: str, max_bytes: int) -> bytes | None:
    try:
        return read_bytes(path, max_bytes)
    except FileNotFoundError:
        return None


def _scheme(path: str) -> str:
    return path.partition("://")[0]


def _kind(path: str) -> str:
    """What answers or is silent as one: a scheme's store, or a host on the web."""
    return "/".join(path.split("/", 3)[:3]) if _scheme(path) in HTTP else _scheme(path)


def _file_system_of(path: str) -> tuple[Any, str]:
    """The file system of a path, which remembers no listing: other processes write there too.

    Not by `fsspec.core.url_to_fs`, which also takes chains of stores.

    Raises:
        FileRefused: For a scheme that is not one of SCHEMES.
    """
    import fsspec

    scheme = _scheme(path)
    if scheme not in SCHEMES:
        raise FileRefused(
            f"{path}: {scheme}:// is no kind of store",
            f"Give a path, or a URL of {', '.join(SCHEMES[:-1])}",
        )
    # That of sftp has no listings to remember, and hands all options to paramiko.
    options: dict[str, Any] = {} if scheme in SFTP else {"use_listings_cache": False}
    try:
        kind = fsspec.get_filesystem_class(scheme)
        if scheme in HTTP:
            from cc_prep.storage import http_client

            options["get_client"] = http_client.session
    except (ImportError, ValueError) as error:  # the second of one that fsspec does not know itself
        extra = "pip install 's3fs'" if scheme in S3 else str(error)
        raise UserError(f"{path}: what reads {scheme}:// is not installed", extra) from None
    return kind(**{**kind._get_kwargs_from_urls(path), **options}), kind._strip_protocol(path)


class _Ranges(io.RawIOBase):
    """A stored file read by ranges, each a request by itself."""

    def __init__(self, path: str) -> None:
        self.path, self.at = path, 0
        self.length = int(call(path, lambda fs, key: fs.info(key)["size"]))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        self.at = max(0, start + offset)
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        size = min(len(buffer), max(0, self.length - self.at))
        data = read_range(self.path, self.at, size) if size else b""
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)


def open_read(path: str) -> BinaryIO:
    """A stored file for reading bytes, some megabytes ahead. Raises FileNotFoundError."""
    return io.BufferedReader(_Ranges(path), READ_AHEAD)


def read_range(path: str, offset: int, size: int) -> bytes:
    """`size` bytes from `offset` on, fewer at the end of the file."""

    def read(fs: Any, key: str) -> bytes:
        data = bytes(fs.cat_file(key, start=offset, end=offset + size))
        if len(data) < size and offset + len(data) < int(fs.info(key)["size"]):
            raise ConnectionError(f"{len(data)} of {size} bytes came")
        return data

    return call(path, read)
