"""A real S3 endpoint over HTTP (moto's server), behind a proxy that has faults."""

from __future__ import annotations

import http.client
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAULTS = ("500", "cut answer", "cut request")  # after which a request has to be made again
BUCKET = "bucket"
KEYS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Store:
    """The proxy's switches and what it did. share: of all requests that meet a fault.

    Besides FAULTS there are "slow", an answer after `seconds`, "silent", no answer as long as the
    store is so, and "expired", a refusal of the keys. done: requests by their fault. methods:
    requests by their method. most_at_once: requests that were under way at a time. held: a PUT of
    such a name is never answered while it stands. refused: reading such a name meets "expired".
    """

    def __init__(self, backend: tuple[str, int]) -> None:
        self.backend = backend
        self.faults: Sequence[str] = ()
        self.share, self.seconds = 0.0, 0.5
        self.dice = random.Random(0)
        self.done: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        self.under_way = self.most_at_once = 0
        self.held = self.refused = ""
        self.lock = threading.Lock()
        self.endpoint = ""

    def fail(self, share: float, faults: Sequence[str] = FAULTS, seed: int = 0) -> None:
        """From now on so many requests meet one of these faults."""
        self.share, self.faults, self.dice = share, faults if share else (), random.Random(seed)
        self.done.clear()
        self.methods.clear()
        self.most_at_once = 0

    @contextmanager
    def counted(self, method: str) -> Iterator[None]:
        """While a request of this method is under way."""
        with self.lock:
            self.methods[method] += 1
            self.under_way += 1
            self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            yield
        finally:
            with self.lock:
                self.under_way -= 1

    def draw(self) -> str:
        with self.lock:
            hit = self.faults and self.dice.random() < self.share
            fault = self.dice.choice(self.faults) if hit else "none"
            self.done[fault] += 1
            return fault


class Handler(BaseHTTPRequestHandler):
    """Hands a request on to the store, or does what the fault says."""

    protocol_version = "HTTP/1.1"
    store: Store

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:  # the client hung up, as it may
            self.close_connection = True

    def relay(self) -> None:
        with self.store.counted(self.command):
            self._relay()

    def _relay(self) -> None:
        while self.command == "PUT" and (name := self.store.held) and name in self.path:
            time.sleep(0.05)
            if not self.store.held:  # whoever asked is gone by now
                self.close_connection = True
                return
        fault = self.store.draw()
        if (
            self.store.refused
            and self.command in ("GET", "HEAD")
            and self.store.refused in self.path
        ):
            fault = "expired"
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "cut request":
            self.rfile.read(length // 2)
            self.connection.close()
            self.close_connection = True
            return
        body = self.rfile.read(length) if length else self._chunks()
        if fault == "500":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "expired":
            self._refuse("ExpiredToken", "The provided token has expired.")
            return
        if fault == "slow":
            time.sleep(self.store.seconds)
        if fault == "silent":
            while "silent" in self.store.faults:
                time.sleep(0.05)
            self.close_connection = True
            return
        self._answer(body, fault == "cut answer")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay  # noqa: N815

    def _chunks(self) -> bytes:
        body = b""
        while "chunked" in self.headers.get("Transfer-Encoding", ""):
            size = int(self.rfile.readline().split(b";")[0], 16)
            body += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        return body

    def _refuse(self, code: str, message: str) -> None:
        xml = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
        self.send_response(400)  # as AWS answers; also to HEAD, whose answer has no body
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(xml)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(xml)

    def _answer(self, body: bytes, cut: bool) -> None:
        backend = http.client.HTTPConnection(*self.store.backend)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "transfer-encoding"}
        headers["Content-Length"] = str(len(body))
        backend.request(self.command, self.path, body, headers)
        answer = backend.getresponse()
        data = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.wfile.flush()
            self.connection.close()
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def running() -> Iterator[Store]:
    """A store with an empty bucket; this process and its children find it by their environment."""
    import boto3
    import s3fs
    from moto.server import ThreadedMotoServer

    before = dict(os.environ)
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    store = Store(server.get_host_and_port())
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"store": store}))
    proxy.daemon_threads = True
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    store.endpoint = f"http://127.0.0.1:{proxy.server_port}"
    os.environ |= {**KEYS, "AWS_ENDPOINT_URL": store.endpoint}
    # Clients are kept by their options, which the endpoint is not among: another store's is gone.
    s3fs.S3FileSystem.clear_instance_cache()
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield store
    finally:
        os.environ.clear()
        os.environ |= before
        s3fs.S3FileSystem.clear_instance_cache()
        proxy.shutdown()
        server.stop()
