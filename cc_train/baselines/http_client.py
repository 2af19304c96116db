"""One request to a server: JSON there and back, and what can go wrong as a line or as a pause.

Only the standard library is used. Redirections are not followed: urllib would take the key along to
wherever they lead.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import json
import os
import re
import socket
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cc_prep import strict_json
from cc_prep.errors import UserError
from cc_train.baselines import doors

PASSING = (408, 409, 425, 429, 500, 502, 503, 504, 529)
# A 400 about one question's images or words, after which the others may still be answered.
FILTERED = ("content_filter", "content_policy_violation", "ResponsibleAIPolicyViolation")
REMEDY = "--url is the address below which the server has /chat/completions"
STATUS_OF_NO_KIND = 400  # of an error that names none
OUT_OF_MONEY = ("insufficient_quota", "billing_hard_limit_reached")  # a 429 that will not pass
# Of a refusal: what its words are about, and what helps. The first that fits is shown.
REMEDIES = (
    (
        ("use 'max_completion_tokens'",),
        "Add --set max_tokens=null --set max_completion_tokens=4096",
    ),
    (
        ("mmproj", "image input", "support image", "multimodal model"),
        "Serve a model that takes images, with its image encoder (llama.cpp: --mmproj)",
    ),
    (
        ("image",),
        "Let the server take two images in a question (vLLM: --limit-mm-per-prompt), or ask "
        "Ollama's own door: --url http://HOST:11434/api/chat",
    ),
    (
        ("max_tokens", "context", "too long", "too large"),
        "Ask for a shorter answer, such as --set max_tokens=1000, or serve the model with a longer "
        "context",
    ),
    (("temperature",), "Add --set temperature=null"),
)
# Words of an HTTP 500 that will not pass: of llama.cpp, and of Ollama.
FOR_GOOD = ("mmproj", "only supports one image")
OTHER_REMEDY = "--set changes what is sent, such as --set temperature=null"
MAX_BYTES = 10_000_000  # of a reply, with its headers
MAX_SECONDS = 600.0  # for a whole reply, whose bytes may come one by one
MAX_TEXT_LENGTH = 300  # of a server's in a message, in characters


class Transient(Exception):
    """A failure that may pass by itself.

    Args:
        retry_after: Seconds, where the server names them.
        unreachable: The server could not be connected to.
    """

    def __init__(self, what: str, retry_after: float | None = None, unreachable: bool = False):
        super().__init__(what)
        self.what, self.retry_after, self.unreachable = what, retry_after, unreachable


class Refused(UserError):
    """The server does not take what it was sent."""


class Filtered(Exception):
    """The server does not answer this question, by its rules on contents."""


@dataclass(frozen=True)
class Endpoint:
    """The server that requests go to. `str` gives the address without query and without key.

    Attributes:
        key: Sent as `Authorization: Bearer …`; None sends nothing.
        variable: The environment variable that holds the key.
    """

    url: str
    variable: str
    key: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, variable: str) -> Endpoint:
        """The endpoint of `--url` and `--key-variable`. Raises UserError."""
        try:
            parts = urlsplit(url)
            # What urllib refuses later it would print, with the query and its secrets.
            plain = url.isascii() and not re.search(r"[\x00-\x20\x7f]", url)
            web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
            usable = plain and web
        except ValueError:  # such as a port that is no number
            usable = False
        if not usable:
            raise UserError(
                "--url is no address of a server", "Give one such as http://localhost:8000/v1"
            )
        if parts.username is not None or parts.password is not None:
            raise UserError("--url holds a name or a password", f"Put the key into ${variable}")
        path = parts.path.rstrip("/")
        if not path.endswith((doors.COMPLETIONS, doors.OLLAMA)):
            path += doors.COMPLETIONS
        whole = urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
        return cls(whole, variable, _key(variable))

    def __str__(self) -> str:
        return urlunsplit((*urlsplit(self.url)[:3], "", ""))

    @property
    def door(self) -> doors.Door:
        """The form in which it takes a chat."""
        return doors.of(urlsplit(self.url).path)

    @property
    def of_ollama(self) -> Endpoint | None:
        """Where the same server has Ollama's own door, if it is Ollama; None if this is it."""
        parts = urlsplit(self.url)
        if parts.path.endswith(doors.OLLAMA):
            return None
        path = parts.path.removesuffix(doors.COMPLETIONS).removesuffix("/v1") + doors.OLLAMA
        return replace(self, url=urlunsplit(parts._replace(path=path)))

    def without_key(self, text: str) -> str:
        """A text of the server's on one line, short, the key blackened.

        What a terminal obeys in it is escaped where it is printed (`cc_prep.terminal`).
        """
        text = text.encode("utf-8", "replace").decode()  # half a pair of surrogates
        text = text.replace(self.key, "…") if self.key else text
        return textwrap.shorten(" ".join(text.split()), MAX_TEXT_LENGTH, placeholder="…")


def _key(variable: str) -> str | None:
    key = os.environ.get(variable, "").strip()
    if not key:
        return None
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"${variable} holds no key: a header cannot carry it", "Set it again")
    return key


class _ReplyTooLarge(Exception):
    """A reply of more than MAX_BYTES."""


class _BoundedSocket(io.RawIOBase):
    """What comes from a socket, up to MAX_BYTES and for MAX_SECONDS in all.

    http.client bounds each line and each pause alone: neither a body whose chunks have wrong sizes,
    nor interim replies or bytes that come one by one without an end.
    """

    def __init__(self, sock: socket.socket, reader: io.RawIOBase) -> None:
        self._sock, self._reader = sock, reader
        self._pause = sock.gettimeout()
        self._until = time.monotonic() + max(MAX_SECONDS, self._pause or 0.0)
        self._bytes_left = MAX_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        seconds_left = self._until - time.monotonic()
        if seconds_left <= 0:
            raise TimeoutError("the reply has no end")
        pause = seconds_left if self._pause is None else min(self._pause, seconds_left)
        self._sock.settimeout(pause)
        count = self._reader.readinto(buffer)
        self._bytes_left -= count or 0
        if self._bytes_left < 0:
            raise _ReplyTooLarge
        return count

    def close(self) -> None:
        self._reader.close()
        super().close()


class _BoundedReply(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_BoundedSocket(sock, self.fp.detach()))


class _HTTPConnection(http.client.HTTPConnection):
    response_class = _BoundedReply


class _HTTPSConnection(http.client.HTTPSConnection):
    response_class = _BoundedReply


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPConnection, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPSConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None  # the redirection is then an HTTPError


def post(endpoint: Endpoint, body: Mapping[str, Any], timeout: float, model: str) -> Any:
    """The reply to a request, parsed.

    Args:
        timeout: Seconds without a byte.
        model: Its name, for messages.

    Raises:
        Transient: For what may pass, Filtered for a question that the server does not answer, else
            UserError.
    """
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if endpoint.key is not None:
        headers["Authorization"] = f"Bearer {endpoint.key}"
    data = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    request = urllib.request.Request(endpoint.url, data, headers)
    opener = urllib.request.build_opener(_HTTPHandler, _HTTPSHandler, _NoRedirect)
    try:
        with opener.open(request, timeout=timeout) as reply:
            content = reply.read(MAX_BYTES)
    except _ReplyTooLarge:
        raise UserError(
            f"{endpoint}: the reply has more than {MAX_BYTES / 1e6:g} MB", REMEDY
        ) from None
    except urllib.error.HTTPError as error:
        with error:
            words, pause = _words(endpoint, error), retry_after(error.headers.get("Retry-After"))
            raise _refused(endpoint, error.code, words, pause, model) from None
    except urllib.error.URLError as error:
        raise _unreachable(endpoint, error.reason) from None
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a chunk of -5
        raise Transient(f"the connection broke off ({_reason(error)})") from None
    try:
        value = strict_json.loads(content)
    except (ValueError, RecursionError):
        value = None
    if value is None:
        raise UserError(f"{endpoint}: the reply is no JSON", REMEDY)
    if isinstance(value, dict) and value.get("error") and "choices" not in value:
        # Some servers that pass questions on send another one's error with the status 200.
        code = value["error"].get("code") if isinstance(value["error"], dict) else None
        if not isinstance(code, int) or not 400 <= code < 600:
            code = STATUS_OF_NO_KIND
        raise _refused(endpoint, code, endpoint.without_key(_text_of(value)), None, model)
    return value


def _unreachable(endpoint: Endpoint, reason: Any) -> Exception:
    broken = isinstance(reason, ConnectionError) and not isinstance(reason, ConnectionRefusedError)
    if broken:
        return Transient(f"the connection broke off ({_reason(reason)})")
    return Transient(f"cannot be reached ({_reason(reason)})", unreachable=True)


def _reason(error: Any) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _refused(
    endpoint: Endpoint, code: int, words: str, pause: float | None, model: str
) -> Exception:
    """The error for a status that is no success.

    Args:
        words: What the server says.
        pause: Seconds that it names.
    """
    if code in (401, 403):
        if endpoint.key is None:
            remedy = f"It wants a key: set {endpoint.variable}, or name another --key-variable"
        else:
            remedy = f"Check the key in {endpoint.variable}"
        return UserError(f"{endpoint}: not allowed (HTTP {code})", remedy)
    if code == 404:
        return UserError(
            f"{endpoint}: not there (HTTP 404)",
            f"Check --url, which often ends in /v1, and whether the server has a model {model!r}",
        )
    if code == 429 and any(word in words for word in OUT_OF_MONEY):
        return UserError(
            f"{endpoint}: the account is used up (HTTP 429)", "See the provider's page"
        )
    if code == 400 and any(word in words for word in FILTERED):
        return Filtered()
    said = f"HTTP {code}{': ' if words else ''}{words}"
    if code in PASSING and not any(word in words for word in FOR_GOOD):
        return Transient(said, pause)
    if 300 <= code < 400:
        return UserError(f"{endpoint}: leads elsewhere (HTTP {code})", "Give that address as --url")
    return Refused(f"{endpoint}: refused ({said})", _remedy(words))


def _remedy(words: str) -> str:
    """What helps against a refusal with these words."""
    lower = words.lower()
    fitting = (remedy for marks, remedy in REMEDIES if any(mark in lower for mark in marks))
    return next(fitting, OTHER_REMEDY)


def _words(endpoint: Endpoint, error: urllib.error.HTTPError) -> str:
    """What the body of an error says, on a line."""
    try:
        text = error.read(MAX_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException, ValueError, _ReplyTooLarge):
        return ""
    with contextlib.suppress(ValueError, RecursionError):
        text = _text_of(strict_json.loads(text))
    return endpoint.without_key(text)


def _text_of(reply: Any) -> str:
    """Code and message of an error that a server sends as JSON; else the whole of it."""
    inner = reply.get("error", reply) if isinstance(reply, dict) else reply
    parts = [inner.get("code"), inner.get("message")] if isinstance(inner, dict) else [inner]
    return " ".join(part for part in parts if isinstance(part, str)) or json.dumps(reply)


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which gives seconds or a date; None for anything else."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, seconds) if seconds < float("inf") else None
