"""The page's HTTP server: files of the page, examples, captions, and the collected pairs.

It listens on this machine alone unless another --host is given. A request must name this server as
its host, by an address or a name of its own, and what changes something must come from its own page
as JSON. No other web site that the user has open can read or write here, or show an image of here.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from cc_prep import storage, strict_json
from cc_prep.errors import JobFailed, RejectedPair, UserError
from cc_prep.media import images, video
from cc_train.serve.captions import CaptionService
from cc_train.serve.collection import Collection, Row
from cc_train.serve.waiting import TYPES, Pair, Waiting

LOCAL = ("127.0.0.1", "localhost", "::1")
MOST_BYTES = 100_000_000  # of a request
MOST_DROPPED = 10 * MOST_BYTES  # of one that is too large, and read to its end for the answer
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/collect.js": ("collect.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Serves one captioner. Raises UserError for a port that is taken or a host that is not here.

    examples: pairs of image files that the page offers. queue: pairs of the user's that wait for
    captions. collection: where captions go; None where none are collected. port: 0 takes any.
    """

    daemon_threads = True

    def __init__(
        self,
        service: CaptionService,
        examples: Sequence[Pair] = (),
        queue: Sequence[Pair] = (),
        collection: Collection | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.service, self.collection = service, collection
        self.waiting = Waiting(queue)
        self.lists = {"examples": list(examples), "queue": self.waiting.pairs}
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise UserError(
                f"{host}, port {port}: {error.strerror}", "Give another --host or --port"
            ) from None
        self.is_local = host in LOCAL
        self.names = {*LOCAL} if self.is_local else {*LOCAL, host.lower(), _machine()}

    def is_called(self, host: str) -> bool:
        """Whether a request's `Host` names this server.

        A page of others that has its own name mean this machine still sends that name. An address
        is never such a name.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.names or (not self.is_local and _is_address(name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of a browser that closed its tab before it had its answer."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Address of the page."""
        host, port = self.server_address[:2]
        name = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{name}:{port}"

    def about(self) -> dict[str, Any]:
        """What the page needs at its start."""
        return {
            **self.service.about(),
            "examples": len(self.lists["examples"]),
            "queue": [] if self.collection is None else self.waiting.left(self.collection),
            "collects": self.collection is not None,
        }


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "cc-train", ""
    timeout = 60
    unread = 0  # bytes of the request's body

    def do_GET(self) -> None:
        """Sends a file of the page, an image, or JSON."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """Captions a pair, or changes the collection."""
        length = self.headers.get("Content-Length", "")
        self.unread = int(length) if length.isdecimal() else 0
        self._answer(self._post)
        self._drop_unread()

    def _answer(self, make: Callable[[], tuple[bytes, str]]) -> None:
        status = HTTPStatus.OK
        try:
            self._check_host()
            body, kind = make()
        except UserError as error:
            status, body, kind = HTTPStatus.BAD_REQUEST, _json({"error": str(error)}), JSON
        except _Refused as error:
            status, body, kind = error.status, _json({"error": str(error)}), JSON
        except (ConnectionError, TimeoutError):  # nobody waits for an answer any more
            raise
        except Exception:  # a fault of ours: the page says so, and the terminal shows it whole
            self.server.handle_error(self.request, self.client_address)
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, JSON
            body = _json({"error": FAULT})
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection or status is not HTTPStatus.OK:
            self.send_header("Connection", "close")  # what was not read of it stays in the socket
        self.end_headers()
        self.wfile.write(body)

    def _check_host(self) -> None:
        """Keeps away pages of others whose name was made to mean this machine."""
        if not self.server.is_called(self.headers.get("Host", "")):
            raise _Refused(HTTPStatus.FORBIDDEN, OTHER_NAME)

    def _get(self) -> tuple[bytes, str]:
        path = unquote(self.path.partition("?")[0])
        if path in PAGE:
            name, kind = PAGE[path]
            return (resources.files("cc_train.serve") / "page" / name).read_bytes(), kind
        if path == "/about":
            return _json(self.server.about()), JSON
        if path == "/pairs":
            return _json([_shown(row) for row in self._collection().rows()]), JSON
        parts = path.strip("/").split("/")
        if len(parts) == 3 and parts[2] in ("before", "after"):
            return _image(self._path(parts[0], parts[1], parts[2]))
        raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _path(self, kind: str, which: str, side: str) -> str:
        """The file of an image that an address names."""
        if kind == "pairs":
            row = self._collection().get(which)
            return str(self._collection().folder / (row.before if side == "before" else row.after))
        pairs = self.server.lists.get(kind, [])
        if not which.isdecimal() or int(which) >= len(pairs):
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such image")
        return pairs[int(which)][side == "after"]

    def _post(self) -> tuple[bytes, str]:
        content = self._content()
        if self.path == "/caption":
            before, after = (_decoded(content, side) for side in ("before", "after"))
            beams = content.get("beams", 1)
            if not isinstance(beams, int):
                raise UserError(f"{beams!r} beams", "Give a number")
            return _json(self.server.service.caption(before, after, beams)), JSON
        if self.path == "/pairs":
            row = _put(self._collection(), content)
            if isinstance(number := content.get("number"), int):
                self.server.waiting.saved(number, self._collection())
            return _json(_shown(row)), JSON
        if self.path == "/pairs/remove":
            self._collection().remove(str(content.get("id")))
            return _json({}), JSON
        raise _Refused(HTTPStatus.NOT_FOUND, "there is no such page")

    def _content(self) -> Mapping[str, Any]:
        """The JSON object of a request from our own page."""
        origin = self.headers.get("Origin")
        if origin is not None and origin != f"http://{self.headers.get('Host')}":
            raise _Refused(HTTPStatus.FORBIDDEN, "this request comes from another page")
        if self.headers.get_content_type() != "application/json":
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send JSON")
        if self.unread > MOST_BYTES:
            most = f"the images have more than {0.75 * MOST_BYTES / 1e6:g} MB"  # base64: 4 for 3
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, most)
        length, self.unread = self.unread, 0
        try:
            content = strict_json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise _Refused(HTTPStatus.BAD_REQUEST, "send a JSON object")
        return content

    def _drop_unread(self) -> None:
        """Reads what a refused request still sends: most browsers take an answer only after all is
        sent, and none where the socket was closed before."""
        left, self.unread = min(self.unread, MOST_DROPPED), 0
        while left > 0 and (part := self.rfile.read(min(left, 1 << 20))):
            left -= len(part)

    def _collection(self) -> Collection:
        if self.server.collection is None:
            raise UserError("no captions are collected", "Start with --collect DIR")
        return self.server.collection

    def log_message(self, format: str, *values: Any) -> None:
        """Says nothing: the terminal shows where the page is."""


JSON = "application/json"
OTHER_NAME = "this server has another name. Use its address, or start it with --host NAME"
FAULT = "The server failed. The terminal of cc-train serve shows why"


class _Refused(Exception):
    """A request that no user of the page makes."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def _machine() -> str:
    return socket.gethostname().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _image(path: str) -> tuple[bytes, str]:
    """An image as the browser can show it: other formats, and frames of videos, become PNG."""
    kind = TYPES.get(Path(path).suffix.lower())
    try:
        if kind is not None:
            return storage.read_bytes(path), kind
        return images.encode_image(images.read(path), "png", 0), TYPES[".png"]
    except (OSError, RejectedPair, JobFailed) as error:
        raise UserError(f"{Path(path).name}: {error}", "Check the file") from None


def _bytes(content: Mapping[str, Any], side: str) -> tuple[bytes, str]:
    """The encoded image of one side, and what it is called."""
    image = content.get(side)
    data = image.get("data") if isinstance(image, dict) else None
    if not isinstance(data, str):
        raise UserError(f"no image {side}", "Give two images")
    name = str(image.get("name") or f"the image {side}") if isinstance(image, dict) else side
    if name.lower().endswith(video.ENDINGS):
        raise UserError(f"{name}: is a video", "Give an image, such as a frame of it")
    try:
        return base64.b64decode(data, validate=True), name
    except ValueError:  # binascii.Error, or text that is not ASCII
        raise UserError(f"{name}: not base64", "Give two images") from None


def _decoded(content: Mapping[str, Any], side: str) -> np.ndarray:
    data, name = _bytes(content, side)
    try:
        return images.decode(data, name)
    except RejectedPair as error:
        raise UserError(error.detail, "Give two images") from None


def _put(collection: Collection, content: Mapping[str, Any]) -> Row:
    captions = content.get("captions")
    if not isinstance(captions, list) or not all(isinstance(one, str) for one in captions):
        raise UserError("no captions", "Write a sentence a line")
    names = [str(content.get(name)) for name in ("id", "split", "kind")]
    before, after = (_bytes(content, side)[0] for side in ("before", "after"))
    replaces = content.get("replaces")
    return collection.put(
        names[0],
        before,
        after,
        captions,
        names[1],
        names[2],
        replaces=None if replaces is None else str(replaces),
    )


def _shown(row: Row) -> dict[str, Any]:
    return {"id": row.id, "captions": row.captions, "split": row.split, "kind": row.kind}
