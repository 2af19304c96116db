"""Object stores, reached through fsspec; only `storage` uses this.

Every request is made again, after growing pauses, before it counts as failed: a store that now and
then answers 500 or hangs up in the middle of an answer costs a job some seconds and nothing else.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, TypeVar

from tenacity import (
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_after_delay,
    wait_exponential_jitter,
)

from cc_prep.errors import FileRefused, StoreFailed, StoreRefused, UserError, named_line

TRIES = 9  # a minute of pauses: a store may be away for that long
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
# A store that takes requests and never answers costs 15 s for each. The client of S3 makes one five
# times (botocore), and s3fs made that five times again in each of our tries: half an hour. Now s3fs
# asks once, and tries after the first LEAST_TRIES are left out once PATIENT_SECONDS are over.
LEAST_TRIES, PATIENT_SECONDS = 3, 180.0
S3, S3FS_TRIES = ("s3", "s3a"), 1
READ_AHEAD = 4 * 2**20
LARGEST_OF_MANY = 2**30  # bytes of a file that `read_many` reads

# Answers, not accidents: asking again would bring the same.
FINAL = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    UserError,
    NotImplementedError,
)
NO_KEYS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound")
# S3's codes of a refusal of the keys themselves. A token may expire in the middle of a job.
BAD_KEYS = (
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
)

T = TypeVar("T")


def call(path: str, action: Callable[[Any, str], T]) -> T:
    """`action(file system, key)`, tried again when it fails. key: the path within the store.

    Raises FileNotFoundError as it is, FileRefused where the keys do not open this file,
    StoreRefused where the store does not accept them, UserError where it cannot even be asked, and
    StoreFailed after the last try.
    """
    fs, key = _file_system_of(path)
    ask = Retrying(
        stop=stop_after_attempt(TRIES)
        | (stop_after_attempt(LEAST_TRIES) & stop_after_delay(PATIENT_SECONDS)),
        wait=wait_exponential_jitter(initial=FIRST_PAUSE, max=LONGEST_PAUSE),
        retry=retry_if_exception(_may_pass),
        reraise=True,
    )
    try:
        return ask(action, fs, key)
    except PermissionError as error:
        raise _refused(path, error, fs, key) from None
    except Exception as error:
        raise _explained(path, error, int(ask.statistics["attempt_number"])) from None


def read_many(paths: Sequence[str]) -> list[bytes | None]:
    """Whole files of one store, asked for side by side; None for those that are not there."""
    if any(set(path) & set("*?[") for path in paths):  # which `cat` would take for patterns
        return [_read_if_there(path) for path in paths]

    def read(fs: Any, _: str) -> dict[str, Any]:
        keys = [fs._strip_protocol(path) for path in paths]
        # A range, however long, spares s3fs from asking for the size of each first.
        answers = fs.cat(keys, on_error="return", start=0, end=LARGEST_OF_MANY)
        return {key: answers[key] for key in keys}

    contents: list[bytes | None] = []
    if not paths:
        return contents
    for path, answer in zip(paths, call(paths[0], read).values(), strict=True):
        if isinstance(answer, FileNotFoundError):
            contents.append(None)
        elif isinstance(answer, Exception):  # once more, alone, with the usual patience
            contents.append(_read_if_there(path))
        else:
            contents.append(bytes(answer))
    return contents


def _read_if_there(path: str) -> bytes | None:
    try:
        return call(path, lambda fs, key: bytes(fs.cat_file(key)))
    except FileNotFoundError:
        return None


def _file_system_of(path: str) -> tuple[Any, str]:
    """The file system of a path, which remembers no listing: other processes write there too."""
    import fsspec

    try:
        fs, key = fsspec.core.url_to_fs(path, use_listings_cache=False)
    except ImportError as error:
        scheme = path.partition("://")[0]
        extra = "pip install 's3fs'" if scheme in S3 else str(error)
        raise UserError(f"{path}: what reads {scheme}:// is not installed", extra) from None
    except ValueError as error:
        reason = f"{path.partition('://')[0]}:// is no kind of store ({error})"
        raise UserError(reason, "Give a path, or a URL like s3://bucket/x") from None
    if path.partition("://")[0] in S3:
        fs.retries = S3FS_TRIES
    return fs, key


def _may_pass(error: BaseException) -> bool:
    return (
        isinstance(error, Exception)
        and not isinstance(error, FINAL)
        and type(error).__name__ not in NO_KEYS
    )


def _explained(path: str, error: Exception, tries: int) -> Exception:
    if type(error).__name__ in NO_KEYS:
        return StoreRefused(f"{path}: {error}", "Give the store's keys, as its own tools want them")
    if not _may_pass(error):
        return error
    reason = named_line(error)
    return StoreFailed(f"{path}: the store failed {tries} times, the last with {reason}")


def _refused(path: str, error: PermissionError, fs: Any, key: str) -> UserError:
    """What a refusal is about, the keys or this file."""
    if _code(error) == "403":  # of HEAD, whose answer says no more
        with contextlib.suppress(Exception):
            try:
                fs.cat_file(key, start=0, end=1)
            except PermissionError as answer:
                error = answer
    reason = f"{path}: {error.strerror or str(error) or 'permission denied'}"
    if _code(error) in BAD_KEYS:
        return StoreRefused(f"{reason} ({_code(error)})", "Give keys that the store accepts")
    return FileRefused(reason, "Give keys that may read it, or write it if it is an output")


def _code(error: PermissionError) -> str:
    """S3's code of a refusal; empty for other stores."""
    answer = getattr(error.__cause__, "response", None) or {}
    return str(answer.get("Error", {}).get("Code", ""))


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
