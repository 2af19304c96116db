"""What an error of an object store means: an accident that may pass, or an answer that stays."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

from cc_prep.errors import FileRefused, StoreFailed, StoreRefused, UserError, named_line

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
NO_ADDRESS = ("ParamValidationError", "InvalidRegionError", "UnknownEndpointError")
# S3's codes of a refusal of the keys themselves. A token may expire in the middle of a job.
BAD_KEYS = (
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "NotSignedUp",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
)
BAD_NAME = ("KeyTooLongError",)  # of the file, in the words of S3
# Statuses and S3's codes by which the same request may have another answer later.
LATER = (408, 409, 425, 429)
ACCIDENTS = (
    "BadDigest",
    "IncompleteBody",
    "InvalidPart",
    "RequestTimeout",
    "SlowDown",
    "XAmzContentSHA256Mismatch",
)
TOO_MANY_REDIRECTS = "TooManyRedirects"  # aiohttp's
EMPTY_FILE = ("InvalidRange", "416")  # of which no range can be read

NO_KEYS_REMEDY = "Give the store's keys, as its own tools want them"
BAD_KEYS_REMEDY = "Give keys that the store accepts"
FILE_REMEDY = "Give keys that may read it, or write it if it is an output"
ADDRESS_REMEDY = "Correct the bucket's name, the region or the endpoint (AWS_ENDPOINT_URL)"


def may_pass(error: BaseException, reached: bool = True) -> bool:
    """Whether the same request may succeed later.

    Args:
        reached: The store has answered before.
    """
    return (
        isinstance(error, Exception)
        and not isinstance(error, FINAL)
        and type(error).__name__ not in (*NO_KEYS, *NO_ADDRESS, TOO_MANY_REDIRECTS)
        and not _is_wrong_value(error)
        and not _is_permanent(error)
        and (reached or not _is_unknown_host(error))
    )


def is_silent(error: BaseException | None) -> bool:
    """Whether the store took the request and did not answer."""
    return error is not None and "Timeout" in type(error).__name__ and not _response(error)


def explained(path: str, error: Exception, tries: int, reached: bool) -> Exception:
    """The error to show in the place of a store's own; FileNotFoundError and the like stay."""
    name, code = type(error).__name__, code_of(error)
    if name in NO_KEYS:
        return StoreRefused(f"{path}: {error}", NO_KEYS_REMEDY)
    if isinstance(error, UserError):
        return error
    words = getattr(error, "strerror", "") or " ".join(str(error).split())[:200]
    if code in BAD_KEYS:
        return StoreRefused(f"{path}: {words or 'refused'} ({code})", BAD_KEYS_REMEDY)
    if code in BAD_NAME:
        return FileRefused(f"{path}: {words or 'refused'} ({code})", "Give a shorter name")
    if isinstance(error, PermissionError):
        return FileRefused(f"{path}: {words or 'permission denied'}", FILE_REMEDY)
    if isinstance(error, FINAL):
        return error
    status = _status(error)
    if status and not may_pass(error):
        answer = f"{status} {getattr(error, 'message', '')}".strip()
        return FileRefused(
            f"{path}: the server answers {answer}",
            FILE_REMEDY if status in (401, 403, 407) else "Check the address",
        )
    if name == TOO_MANY_REDIRECTS:
        return FileRefused(f"{path}: redirects in a circle", "Check the address")
    if _is_wrong_value(error) and not _names_endpoint(error):
        return FileRefused(f"{path}: {words or name}", "Correct the address")
    if may_pass(error, reached):
        how = "with" if tries == 1 else f"{tries} times, the last with"
        return StoreFailed(f"{path}: the store failed {how} {named_line(error)}")
    remedy = "Correct the address" if path.startswith(("http", "hf:")) else ADDRESS_REMEDY
    return StoreRefused(f"{path}: {words or name}{f' ({code})' if code else ''}", remedy)


def told_by_get(error: Exception, fs: Any, key: str) -> Exception:
    """The reason of a refusal, which the answer to a HEAD lacks: S3 gives it to a GET.

    Another error, such as that of a connection, if the GET meets it. `error` itself if it tells a
    reason, or the GET tells none.
    """
    if code_of(error) not in ("400", "403"):
        return error
    try:
        fs.cat_file(key, start=0, end=1)
    except FileNotFoundError:
        return error
    except Exception as answer:
        code = code_of(answer)
        if code not in EMPTY_FILE and (code or may_pass(answer)):
            return answer
    return error


def told_by_http(error: Exception) -> Exception:
    """The error that fsspec's client hides where it asks for the size of a file: it takes each for
    that of a file that is not there."""
    hidden = error.__cause__
    if not (isinstance(error, FileNotFoundError) and isinstance(hidden, Exception)):
        return error
    return error if _status(hidden) == 404 else hidden


def is_of_empty_file(error: Exception) -> bool:
    """Whether it is the answer to a request for a part of an empty file."""
    return code_of(error) in EMPTY_FILE or _status(error) == 416


def code_of(error: BaseException) -> str:
    """S3's code of an answer, or its status if it has no body; empty for other stores."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: BaseException) -> dict[str, Any]:
    for one in (error, error.__cause__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return response
    return {}


def _status(error: BaseException) -> int:
    """The HTTP status of an answer whose error has it, as that of aiohttp and of gcsfs; or 0."""
    values = (getattr(error, name, 0) for name in ("status", "code"))
    return next((value for value in values if isinstance(value, int) and value >= 400), 0)


def _is_wrong_value(error: BaseException) -> bool:
    """Whether it is of an address that cannot be asked, as of a port above 65535."""
    return isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError)


def _names_endpoint(error: BaseException) -> bool:
    return "endpoint" in str(error).lower()


def _is_permanent(error: Exception) -> bool:
    """Whether it is S3's answer that this request is wrong, as for a region that is another."""
    code = code_of(error)
    status = _response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", _status(error))
    if not status and code.isdecimal():
        status = int(code)
    if code in ACCIDENTS or "Throttl" in code or status in LATER:
        return False
    return code in BAD_KEYS or status in (301, 501) or 400 <= status < 500


def _is_unknown_host(error: BaseException) -> bool:
    """Whether there is no host of that name, as for a mistyped endpoint."""
    return any(
        isinstance(one, socket.gaierror) and one.errno == socket.EAI_NONAME
        for one in _causes(error)
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = set[int]()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
