"""A stand-in for an OpenAI-compatible server, at an address of this machine.

It checks the form of every request, and answers with a sentence that is made of what it was sent.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import cv2
import numpy as np

KEY = "sk-a-secret-that-nobody-may-see"
MODEL = "seer"
COMPLETIONS = "/v1/chat/completions"


@dataclass(frozen=True)
class Trouble:
    """What is replied in place of an answer. broken: the connection ends without a reply."""

    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = field(default_factory=dict)
    broken: bool = False


class ChatServer(ThreadingHTTPServer):
    """troubles: what the next requests get, first to last. seen: how often each pair was answered,
    by the means of its images. bodies, headers: of all requests. hold: requests that come once so
    many were answered get no reply before `release`, and none after it.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[float, float], str | Trouble] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer or (lambda before, after: f"from {before:.0f} to {after:.0f}")
        self.troubles: list[Trouble] = []
        self.seen: Counter[tuple[int, int]] = Counter()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hold: int | None = None
        self.held, self.release = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextlib.contextmanager
def serving(answer: Callable[[float, float], str | Trouble] | None = None) -> Iterator[ChatServer]:
    server = ChatServer(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.bodies.append(body)
            server.headers.append(dict(self.headers))
            trouble = server.troubles.pop(0) if server.troubles else None
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            hold = server.hold is not None and server.seen.total() >= server.hold
        try:
            if hold:  # until nobody waits for the reply any more
                server.held.set()
                server.release.wait(30)
                trouble = Trouble(broken=True)
            self._reply(body, trouble)
        finally:
            with server.lock:
                server.under_way -= 1

    def _reply(self, body: dict[str, Any], trouble: Trouble | None) -> None:
        if trouble is not None and trouble.broken:
            self.close_connection = True
            return None
        if trouble is not None:
            return self._json(trouble.body, trouble.status, trouble.headers)
        if self.path.partition("?")[0] != COMPLETIONS or body["model"] != MODEL:
            return self._json({"error": {"message": f"no {body['model']}"}}, 404)
        before, after = means = _means(body)
        with self.server.lock:
            self.server.seen[round(before), round(after)] += 1
        answer = self.server.answer(*means)
        if isinstance(answer, Trouble):
            return self._json(answer.body, answer.status, answer.headers)
        message = {"role": "assistant", "content": answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self._json({"object": "chat.completion", "choices": [choice]})

    def _json(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, text)
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are kept, not printed."""


def _means(body: dict[str, Any]) -> tuple[float, float]:
    """The mean grey of both images of a request of exactly the form that is documented."""
    [message] = body["messages"]
    assert message["role"] == "user"
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "image_url", "text", "image_url", "text"], kinds
    means = []
    for part in message["content"][1::2]:
        head, _, data = part["image_url"]["url"].partition(",")
        content = base64.b64decode(data, validate=True)
        assert head == "data:image/png;base64"
        means.append(float(cv2.imdecode(np.frombuffer(content, np.uint8), 0).mean()))
    return means[0], means[1]
