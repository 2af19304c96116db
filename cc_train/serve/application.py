"""What the page can ask for: its files, examples, captions, and the collected pairs; and programs.

A request must name this server as its host, and what changes something must come from its own page
as JSON, or from a program. No other web site that the user has open can read or write here, or show
an image of here.

Whatever is asked, the memory stays bounded: by the connections and their time (`connections`), by
the bytes of all bodies that are held at once, and by the few requests that are worked on at once.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import json
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from importlib import resources
from typing import Any

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cc_prep import __version__, strict_json
from cc_prep.datasets import no_change_sentences
from cc_prep.errors import JobFailed, RejectedPair, UserError
from cc_prep.media import images, video
from cc_prep.records import CHANGE
from cc_train.pretrained import Captioner
from cc_train.serve import api
from cc_train.serve.caption_service import CaptionService, Service
from cc_train.serve.collection import Collection, Row
from cc_train.serve.waiting import TYPES, Pair, Waiting

MAX_BYTES = 100_000_000  # of the body of a request
MAX_IMAGE_BYTES = MAX_BYTES * 3 // 4  # base64: 4 for 3
MAX_BYTES_HELD = 3 * MAX_BYTES  # of the bodies of all requests and answers that are under way
MAX_WORKERS = 2  # requests that are worked on at once, besides one that captions
MAX_MESSAGE = 500  # characters of an error; it may repeat what was sent
PART = 65_536  # bytes of an answer that are handed to a connection at once
PAGE = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/collect.js": ("collect.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
FILES = {**PAGE, "/v1/openapi.json": ("openapi.json", api.JSON)}
HEALTH = "/health"
API = {"/v1/caption": api.caption, "/v1/captions": api.captions}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
JSON = api.JSON
OTHER_NAME = "this server has another name. Use its address, or start it with --host NAME"
FAULT = "The server failed. The terminal of cc-train serve shows why"
FULL = "the server is busy with other images. Try again"
NO_TOKEN = "this server wants its token. Send it as Authorization: Bearer TOKEN"

_Work = Callable[[Captioner, str, bytearray], dict[str, Any]]


class Application:
    """Answers the requests of a page. `asgi` is what an HTTP server runs.

    Args:
        service, examples, queue, collection: As of `Server`.
        is_called: Whether a `Host` names it.
        token: What all requests but HEALTH must name; None for a server that everybody may ask.
    """

    def __init__(
        self,
        service: Service,
        examples: Sequence[Pair],
        queue: Sequence[Pair],
        collection: Collection | None,
        is_called: Callable[[str], bool],
        token: str | None = None,
    ) -> None:
        self.service, self.collection = service, collection
        self.waiting = Waiting(queue)
        self.lists = {"examples": list(examples), "queue": self.waiting.pairs}
        self.bytes_held = 0
        self._working, self._captioning = CapacityLimiter(MAX_WORKERS), CapacityLimiter(1)
        self.asgi = Starlette(
            routes=[
                *(Route(path, self._file) for path in FILES),
                Route("/about", self._about),
                Route("/caption", self._caption, methods=["POST"]),
                Route("/pairs", self._rows),
                Route("/pairs", self._put, methods=["POST"]),
                Route("/pairs/remove", self._remove, methods=["POST"]),
                Route(HEALTH, self._health),
                *self._routes_of_programs(),
                Route("/{kind}/{which}/{side}", self._image),
            ],
            middleware=[Middleware(_Guard, is_called=is_called, token=token)],
            exception_handlers={
                UserError: self._mistake,
                _Refused: self._refusal,
                HTTPException: self._unknown,
                ClientDisconnect: self._gone,
                Exception: self._fault,
            },
        )
        self.asgi.router.redirect_slashes = False

    def about(self) -> dict[str, Any]:
        """What the page needs at its start."""
        return {
            **self.service.about(),
            "examples": len(self.lists["examples"]),
            "queue": [] if self.collection is None else self.waiting.left(self.collection),
            "collects": self.collection is not None,
        }

    async def _file(self, request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return _Answer((resources.files("cc_train.serve") / "page" / name).read_bytes(), kind)

    async def _about(self, request: Request) -> Response:
        return await self._answer(request, lambda: (_json(self.about()), JSON))

    async def _health(self, request: Request) -> Response:
        """That it answers. No thread makes this: it is told while others wait for captions."""
        told = {"status": "ok", "captioner": self.service.name, "version": __version__}
        return _Answer(_json(told), JSON)

    def _routes_of_programs(self) -> list[Route]:
        """None where a server captions the pairs: a program asks that server itself."""
        if not isinstance(self.service, CaptionService):
            return []
        captioner = self.service.captioner
        return [
            Route(path, self._program(captioner, work), methods=["POST"])
            for path, work in API.items()
        ]

    def _program(
        self, captioner: Captioner, work: _Work
    ) -> Callable[[Request], Awaitable[Response]]:
        """What answers a program's request."""

        async def answer(request: Request) -> Response:
            body = await self._body(request, (api.JSON, api.FORM))
            content_type = request.headers["Content-Type"]
            return await self._answer(
                request,
                lambda: (_json(work(captioner, content_type, body)), JSON),
                self._captioning,
            )

        return answer

    async def _rows(self, request: Request) -> Response:
        rows = self._collected().rows
        return await self._answer(request, lambda: (_json(list(map(_shown, rows()))), JSON))

    async def _image(self, request: Request) -> Response:
        return await self._answer(request, lambda: image(self._path(**request.path_params)))

    def _path(self, kind: str, which: str, side: str) -> str:
        """The file of an image that an address names."""
        if side not in ("before", "after"):
            raise HTTPException(HTTPStatus.NOT_FOUND)
        if kind == "pairs":
            row = self._collected().get(which)
            return str(self._collected().folder / (row.before if side == "before" else row.after))
        pairs = self.lists.get(kind, [])
        # A number of more digits is none of the list, and `int` does not take any number of them.
        few = which.isdecimal() and len(which) <= len(str(len(pairs)))
        if not few or int(which) >= len(pairs):
            raise _Refused(HTTPStatus.NOT_FOUND, "there is no such image")
        return pairs[int(which)][side == "after"]

    async def _caption(self, request: Request) -> Response:
        def caption(content: Mapping[str, Any]) -> dict[str, Any]:
            before, after = (_decoded(content, side) for side in ("before", "after"))
            beams = content.get("beams", 1)
            if not isinstance(beams, int):
                raise UserError("the beams are no number", "Give a number")
            return self.service.caption(before, after, beams)

        return await self._post(request, caption, self._captioning)

    async def _put(self, request: Request) -> Response:
        def put(content: Mapping[str, Any]) -> dict[str, Any]:
            row = _put(self._collected(), content)
            if isinstance(number := content.get("number"), int):
                self.waiting.saved(number, self._collected())
            all_say_so = no_change_sentences.all_say_so(row.captions)
            return {**_shown(row), "contradicts": row.kind == CHANGE and all_say_so}

        return await self._post(request, put, self._working)

    async def _remove(self, request: Request) -> Response:
        def remove(content: Mapping[str, Any]) -> dict[str, Any]:
            self._collected().remove(_text(content, "id"))
            return {}

        return await self._post(request, remove, self._working)

    def _collected(self) -> Collection:
        if self.collection is None:
            raise UserError("no captions are collected", "Start with --collect DIR")
        return self.collection

    async def _post(
        self,
        request: Request,
        work: Callable[[Mapping[str, Any]], dict[str, Any]],
        limiter: CapacityLimiter,
    ) -> Response:
        data = await self._body(request)
        return await self._answer(request, lambda: (_json(work(_object(data))), JSON), limiter)

    async def _answer(
        self,
        request: Request,
        make: Callable[[], tuple[bytes, str]],
        limiter: CapacityLimiter | None = None,
    ) -> Response:
        """The answer that a thread makes: a body and its media type."""
        body, kind = await to_thread.run_sync(make, limiter=limiter or self._working)
        self._hold(request, len(body))
        return _Answer(body, kind)

    async def _body(self, request: Request, kinds: Sequence[str] = (JSON,)) -> bytearray:
        """The body of a request from our own page or a program, of one of some media types."""
        origin = request.headers.get("Origin")
        if origin is not None and origin != f"http://{request.headers.get('Host')}":
            raise _Refused(HTTPStatus.FORBIDDEN, "this request comes from another page")
        kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind not in kinds:
            wanted = "JSON" if len(kinds) == 1 else "JSON or a form"
            raise _Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send {wanted}")
        length = request.headers.get("Content-Length")  # h11 has checked that it is a number
        if length is None or "Transfer-Encoding" in request.headers:  # which overrides it
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "send the length of the request")
        if int(length) > MAX_BYTES:
            most = f"the images have more than {MAX_IMAGE_BYTES / 1e6:g} MB"
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, most)
        self._hold(request, int(length))
        body = bytearray()
        async for part in request.stream():
            body += part
        return body

    def _hold(self, request: Request, count: int) -> None:
        """Counts bytes that are held until a request is answered. Raises _Refused for too many."""
        if self.bytes_held + count > MAX_BYTES_HELD:
            raise _Refused(HTTPStatus.SERVICE_UNAVAILABLE, FULL)
        self.bytes_held += count
        request.scope["answered"].callback(self._release, count)

    def _release(self, count: int) -> None:
        self.bytes_held -= count

    async def _mistake(self, request: Request, error: Any) -> Response:
        """A user's mistake. Where the folder lies is not told: the terminal knows it."""
        folder = None if self.collection is None else self.collection.folder
        message = str(error) if folder is None else str(error).replace(str(folder), folder.name)
        return _error(HTTPStatus.BAD_REQUEST, message)

    async def _refusal(self, request: Request, error: Any) -> Response:
        return _error(error.status, str(error))

    async def _unknown(self, request: Request, error: Any) -> Response:
        return _error(HTTPStatus(error.status_code), "there is no such page")

    async def _gone(self, request: Request, error: Any) -> Response:
        return _error(HTTPStatus.BAD_REQUEST, "")  # nobody waits for an answer any more

    async def _fault(self, request: Request, error: Any) -> Response:
        """A fault of ours: the page says so, and the terminal shows it whole."""
        traceback.print_exception(error)
        return _error(HTTPStatus.INTERNAL_SERVER_ERROR, FAULT)


class _Guard:
    """Keeps away pages of others whose name was made to mean this machine, and who has no token.

    A browser has no way to send a bearer token. It asks its user for a password, which is the
    token, with any name.
    """

    def __init__(self, app: ASGIApp, is_called: Callable[[str], bool], token: str | None) -> None:
        self.app, self.is_called, self.token = app, is_called, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.ExitStack() as scope["answered"]:
            request = Request(scope)
            if not self.is_called(request.headers.get("Host", "")):
                answer: ASGIApp = _error(HTTPStatus.FORBIDDEN, OTHER_NAME)
            elif not self._may_ask(request):
                answer = _error(HTTPStatus.UNAUTHORIZED, NO_TOKEN)
                is_page = not request.url.path.startswith("/v1/")
                answer.headers["WWW-Authenticate"] = "Basic" if is_page else "Bearer"
            else:
                answer = self.app
            await answer(scope, receive, send)

    def _may_ask(self, request: Request) -> bool:
        if self.token is None or request.url.path == HEALTH:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:  # binascii.Error, or no UTF-8
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given.encode(), self.token.encode())


class _Answer(Response):
    """An answer with the headers of all. Its parts are handed over as the other side takes them, so
    that it counts as held until all of it is on its way."""

    def __init__(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        super().__init__(body, status, {**HEADERS, "Content-Type": kind})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        part = {"type": "http.response.body", "more_body": True}
        for begin in range(0, len(self.body), PART):
            await send({**part, "body": bytes(self.body[begin : begin + PART])})
        await send({**part, "more_body": False})


class _Refused(Exception):
    """A request that no user of the page makes, or that has to wait."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def _error(status: HTTPStatus, message: str) -> Response:
    return _Answer(_json({"error": message[:MAX_MESSAGE]}), JSON, status)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _object(data: bytearray) -> Mapping[str, Any]:
    """The JSON object of a body."""
    try:
        content = strict_json.loads(data)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _Refused(HTTPStatus.BAD_REQUEST, "send a JSON object")
    return content


def image(path: str) -> tuple[bytes, str]:
    """An image as a browser can show it, and its media type.

    It is sent as it is only where it could be decoded, so that nothing else of this machine or of
    an address ever is; other formats, and frames of videos, become PNG. Raises UserError.
    """
    folder, slash, name = path.rpartition("/")
    try:
        if images.FRAME in path:
            data, extension = b"", None
            pixels = images.read(path)
        else:
            data = images.read_encoded(path)
            pixels, extension = images.decode(data, name), images.extension(data)
    except (OSError, RejectedPair, JobFailed, UserError) as error:
        what = str(error).replace(folder + slash, "")  # where it lies is told nobody
        remedy = "" if getattr(error, "remedy", "") else "Check the file"  # `what` has its own
        raise UserError(what if name in what else f"{name}: {what}", remedy) from None
    if extension is None:
        data, extension = images.encode_image(pixels, "png", 0), ".png"
    if len(data) > MAX_IMAGE_BYTES:
        most = f"{MAX_IMAGE_BYTES / 1e6:g} MB"
        raise UserError(f"{name}: more than {most}", "Give a smaller image")
    return data, TYPES[extension]


def _encoded(content: Mapping[str, Any], side: str) -> tuple[bytes, str]:
    """The encoded image of one side, and what it is called."""
    sent = content.get(side)
    data = sent.get("data") if isinstance(sent, dict) else None
    if not isinstance(data, str):
        raise UserError(f"no image {side}", "Give two images")
    name = sent.get("name") if isinstance(sent, dict) else None
    name = name if isinstance(name, str) and name else f"the image {side}"
    if name.lower().endswith(video.ENDINGS):
        raise UserError(f"{name}: is a video", "Give an image, such as a frame of it")
    try:
        return base64.b64decode(data, validate=True), name
    except ValueError:  # binascii.Error, or text that is not ASCII
        raise UserError(f"{name}: not base64", "Give two images") from None


def _decoded(content: Mapping[str, Any], side: str) -> np.ndarray:
    data, name = _encoded(content, side)
    try:
        return images.decode(data, name)
    except RejectedPair as error:
        raise UserError(error.detail, "Give two images") from None


def _text(content: Mapping[str, Any], name: str) -> str:
    text = content.get(name)
    if not isinstance(text, str):
        raise UserError(f"{name} is no text", "Reload the page")
    return text


def _put(collection: Collection, content: Mapping[str, Any]) -> Row:
    captions = content.get("captions")
    if not isinstance(captions, list) or not all(isinstance(one, str) for one in captions):
        raise UserError("no captions", "Write a sentence a line")
    before, after = (_encoded(content, side)[0] for side in ("before", "after"))
    return collection.put(
        _text(content, "id"),
        before,
        after,
        captions,
        _text(content, "split"),
        _text(content, "kind"),
        replaces=None if content.get("replaces") is None else _text(content, "replaces"),
    )


def _shown(row: Row) -> dict[str, Any]:
    return {"id": row.id, "captions": row.captions, "split": row.split, "kind": row.kind}
