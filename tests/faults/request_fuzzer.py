"""Requests that are meant to break the page's server: malformed, half, huge, slow, pipelined.

`python -m tests.faults.request_fuzzer --minutes 30 --seed 1` sends them to a server in a process of
its own until the time is over, and says how many it took. What is not as it must be is an
AssertionError, with the seed of the batch.
"""

from __future__ import annotations

import argparse
import base64
import collections
import contextlib
import io
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from PIL import Image

from cc_train.serve.collection import Collection
from tests.conftest import ROOT
from tests.faults.page_server import SECRET
from tests.raw_http import Reply, exchange, received, replies, request

BATCH = 100  # requests, after which the server is looked at
SENDERS = 16
QUIET = 0.2  # s without a byte after which no answer is expected any more
MAX_IDLE = 30  # connections that are left open until the end of a batch
MAX_BODY = 20_000_000  # bytes of a huge request
# The server may hold 300 MB of bodies, and makes texts, JSON and pixels of those it works on.
MAX_GROWTH = 1_500_000_000
MAX_THREADS = 24
PIECES = (
    b"\r\n", b"\n", b"\0", b" ", b":", b"\r\n\r\n", b"HTTP/1.1", b"HTTP/9.9", b"%00", b"%2e%2e/",
    b"../", b"\xff\xfe", b"9" * 5000, b"-1", b"0x10", b"Transfer-Encoding: chunked\r\n", b"chunked",
    b"Content-Length: 0\r\n", b"Content-Length: 7\r\n", b"Host: evil.example\r\n", b"{",
    b"[" * 5000, b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Upgrade: websocket\r\n", b"Origin: null\r\n", b"Range: bytes=0-,-1\r\n", b"\xc2\xb2", b"/",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
)  # fmt: skip
PATHS = (
    *["/", "/page.css", "/queue/0/before", "/examples/1/after", "/pairs"] * 4,
    "/page.js", "/about", "/pairs", "/queue/0/before", "/queue/1/after", "/queue/2/before",
    "/health", "/v1/openapi.json", "/v1/caption", "/v1/captions", "/v1/../about",
    "/queue/3/before", "/queue/4/after", "/examples/0/before", "/pairs/a/before", "/pairs/b/after",
    "/../secret.txt", "/%2e%2e/secret.txt", "/queue/..%2fsecret.txt/before", "/queue/-1/before",
    "/queue/0/before?x=../../etc/passwd", "/pairs/..%2f..%2fsecret/before", "//secret.txt", "*",
    "http://127.0.0.1/about", "file:///etc/passwd", "/queue/" + "9" * 5000 + "/before", "/%ff%fe",
)  # fmt: skip
METHODS = (*["GET"] * 20, "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH")


def png(width: int, height: int) -> bytes:
    data = io.BytesIO()
    Image.new("L", (width, height), 90).save(data, "PNG")
    return data.getvalue()


SMALL, BOMB = png(24, 24), png(12_000, 12_000)


class Attack:
    """Makes requests, all decided by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self) -> object:
        """What a program may put in the place of any value of JSON."""
        return self.random.choice(
            [
                None,
                True,
                -1,
                10**30,
                1e308,
                "",
                "x" * 5000,
                "../x",
                "\ud800",
                "\0",
                [],
                [[]],
                {},
                "é",
            ]
        )

    def body(self) -> bytes:
        """A pair, which is right or has something else in a few places."""
        image = self.random.choice([SMALL, SMALL, SMALL, BOMB, SMALL[:60], b"", b"GIF89a", b"%PDF"])
        if self.random.random() < 0.3:
            image = self.damaged(image)
        content: dict[str, object] = {
            side: {"name": "a.png", "data": base64.b64encode(data).decode()}
            for side, data in (("before", SMALL), ("after", image))
        }
        content |= {"id": self.random.choice("abc"), "captions": ["x"], "split": "train"}
        content |= {"kind": "change", "beams": self.random.choice([1, 2]), "number": 0}
        for _ in range(self.random.choice([0, 0, 1, 2])):
            content[self.random.choice([*content, "replaces"])] = self.value()
        return json.dumps(content).encode()

    def asked(self) -> bytes:
        """A program's request for captions, which is right or has something else in a few places.

        It is JSON of a pair or of a batch, or a form.
        """
        images = [SMALL, SMALL, self.random.choice([SMALL, BOMB, SMALL[:60], b"", b"GIF89a"])]
        pairs: list[object] = [
            {side: base64.b64encode(self.random.choice(images)).decode() for side in SIDES}
            for _ in range(self.random.choice([1, 2, 2, 40]))
        ]
        content: dict[str, object] = {"beams": self.random.choice([1, 2]), "mask": True}
        if self.random.random() < 0.3:
            pairs[self.random.randrange(len(pairs))] = self.value()
        if self.random.random() < 0.3:
            content[self.random.choice(["beams", "mask", "x"])] = self.value()
        if self.random.random() < 0.4:
            return request("POST", "/v1/captions", json.dumps({**content, "pairs": pairs}).encode())
        if self.random.random() < 0.5 and isinstance(pairs[0], dict):
            return request("POST", "/v1/caption", json.dumps({**content, **pairs[0]}).encode())
        names = ["before", "after", *content, *self.random.choice([[], ["before"], ["y" * 5000]])]
        body = b""
        for name in names:
            value = self.random.choice(images) if name in SIDES else json.dumps(self.value())
            file = self.random.choice(['; filename="a.png"', "", "; filename*=UTF-8''a%00"])
            body += f'--line\r\nContent-Disposition: form-data; name="{name}"{file}\r\n'.encode()
            body += self.random.choice([b"", b"Content-Transfer-Encoding: base64\r\n", b"X: y\r\n"])
            body += b"\r\n" + (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
        kind = self.random.choice(["boundary=line", 'boundary="line"', "", "boundary=" + "x" * 300])
        ends = self.random.choice([b"--line--\r\n", b"", b"--line"])
        headers = (("Content-Type", f"multipart/form-data; {kind}"),)
        return request("POST", "/v1/caption", body + ends, headers)

    def right(self) -> bytes:
        """A request of a form that the server knows."""
        kind = self.random.random()
        if kind < 0.2:
            return self.asked()
        if kind < 0.45:
            path = self.random.choice(["/caption", "/pairs", "/pairs/remove"])
            return request("POST", path, self.body())
        return request(self.random.choice(METHODS), self.random.choice(PATHS))

    def damaged(self, data: bytes) -> bytes:
        """Bytes with a few changes."""
        changed = bytearray(data)
        for _ in range(self.random.randint(1, 4)):
            # Most of a request with a body is its body, which is one kind of damage among others.
            at = self.random.randint(0, min(len(changed), self.random.choice([300, 10**6])))
            piece = self.random.choice([*PIECES, self.random.randbytes(4)])
            how = self.random.choice(["insert", "overwrite", "drop", "flip", "double"])
            if how == "insert":
                changed[at:at] = piece
            elif how == "overwrite":
                changed[at : at + len(piece)] = piece
            elif how == "drop":
                del changed[at : at + self.random.randint(1, 40)]
            elif how == "flip" and at < len(changed):
                changed[at] ^= self.random.randint(1, 255)
            elif how == "double":
                changed[at:at] = changed[at : at + self.random.randint(1, 200)]
        return bytes(changed)

    def huge(self) -> bytes:
        """A request with much of one thing."""
        count = self.random.choice([10_000, 100_000, 1_000_000])
        return self.random.choice(
            [
                lambda: request("GET", "/" + "a" * count),
                lambda: request("GET", "/about", headers=(("X", "y" * count),)),
                lambda: request("GET", "/about", headers=(("X", "y"),) * (count // 10)),
                lambda: request("POST", "/caption", b"x" * self.random.randint(1, MAX_BODY)),
                lambda: request("POST", "/caption", b'{"a":' + b"[" * count),
                lambda: request("POST", "/caption", b'{"a":' + b"9" * count + b"}"),
                lambda: request("GET", "/about", headers=(("Content-Length", str(count)),)),
                lambda: b"GET /" + b"\0" * count,
            ]
        )()

    def chunked(self) -> bytes:
        """A request whose body comes in chunks, most of them wrong."""
        method, path = (
            self.random.choice(["GET", "POST"]),
            self.random.choice(["/about", "/caption"]),
        )
        headers = [
            ("Transfer-Encoding", self.random.choice(["chunked", "gzip", "chunked, chunked"]))
        ]
        data = request(method, path, headers=tuple(headers))
        for _ in range(self.random.randint(0, 5)):
            size = self.random.choice([b"5", b"0", b"-5", b"f" * 30, b"5;x=" + b"y" * 50, b""])
            data += size + b"\r\n" + self.random.choice([b"hello", b"", b"GET / "]) + b"\r\n"
        return data

    def send(self, address: tuple[str, int], idle: collections.deque[socket.socket]) -> bytes:
        """Sends something, and gives what was answered to it."""
        kind = self.random.random()
        if kind < 0.35:
            return exchange(address, self.damaged(self.right()), quiet=QUIET)
        if kind < 0.5:
            many = [self.right() for _ in range(self.random.randint(2, 8))]
            return exchange(address, b"".join(many), quiet=QUIET)
        if kind < 0.6:
            return exchange(address, self.chunked(), quiet=QUIET)
        if kind < 0.65:
            return exchange(address, self.huge(), quiet=QUIET)
        if kind < 0.7:
            return exchange(
                address, self.random.randbytes(self.random.randint(1, 5000)), quiet=QUIET
            )
        data = self.right()
        half = data[: self.random.randint(0, len(data))]
        if kind < 0.8:  # the rest never comes; whoever sent it goes
            with socket.create_connection(address) as connection:
                connection.sendall(half)
                if self.random.random() < 0.5:
                    connection.shutdown(socket.SHUT_WR)
            return b""
        if kind < 0.9:  # or stays
            connection = socket.create_connection(address)
            connection.sendall(half)
            idle.append(connection)
            while len(idle) > MAX_IDLE:
                idle.popleft().close()
            return b""
        if kind < 0.95:  # an answer that nobody reads
            with socket.create_connection(address) as connection:
                connection.sendall(request("GET", "/queue/0/before"))
            return b""
        with socket.create_connection(address, timeout=QUIET) as connection:  # slowly
            for part in (data[at : at + 40] for at in range(0, min(len(data), 400), 40)):
                connection.sendall(part)
                time.sleep(0.005)
            return received(connection)


class Target:
    """A server in a process of its own, and what must hold of it. Ended by `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.words = folder, folder.with_suffix(".stderr")
        folder.mkdir()
        with open(self.words, "wb") as words:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.page_server", str(folder)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=words,
            )
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))
        self.statuses: collections.Counter[int] = collections.Counter()
        self.check()
        self.begun = psutil.Process(self.process.pid).memory_info().rss
        self.peak = self.begun
        self.outside = self._outside()

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def _outside(self) -> dict[str, int]:
        """The files that the server has no business to change."""
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {str(path): path.stat().st_mtime_ns for path in files if "mine" not in path.parts}

    def batch(self, seed: int, count: int) -> None:
        """Sends requests, from several threads, and looks at the server after them."""
        idle: collections.deque[socket.socket] = collections.deque()

        def one(number: int) -> bytes:
            try:
                return Attack(seed * BATCH + number).send(self.address, idle)
            except (ConnectionError, TimeoutError):  # it was refused while it was still sent
                return b""

        try:
            with ThreadPoolExecutor(SENDERS) as pool:
                for data in pool.map(one, range(count)):
                    self._check_answers(data)
            self.check()
        except BaseException as error:
            print(f"seed {seed}: {error!r}; {self.words.read_text()[-2000:]}", file=sys.stderr)
            raise
        finally:
            for connection in idle:
                connection.close()

    def _check_answers(self, data: bytes) -> None:
        assert SECRET not in data
        for reply in replies(data, whole=False):
            self.statuses[reply.status] += 1
            assert reply.status < 500 or reply.status in (501, 503), reply
            if reply.status >= 400:
                assert reply.error, reply

    def check(self) -> None:
        """That the server lives, answers, and holds no more than it may."""
        assert self._answer(request("GET", "/about", headers=(("Connection", "close"),)))
        pair = {side: {"name": "a", "data": base64.b64encode(SMALL).decode()} for side in SIDES}
        body = json.dumps(pair).encode()
        caption = self._answer(request("POST", "/caption", body, (("Connection", "close"),)))
        assert json.loads(caption.body)["caption"]
        program = json.dumps({side: base64.b64encode(SMALL).decode() for side in SIDES}).encode()
        caption = self._answer(request("POST", "/v1/caption", program, (("Connection", "close"),)))
        assert json.loads(caption.body)["caption"]
        Collection(self.folder / "mine").rows()
        process = psutil.Process(self.process.pid)
        assert process.num_threads() <= MAX_THREADS, process.num_threads()
        words = self.words.read_text()
        assert words == "", words
        if hasattr(self, "outside"):
            self.peak = max(self.peak, process.memory_info().rss)
            assert self.peak - self.begun < MAX_GROWTH, self.peak - self.begun
            assert self._outside() == self.outside

    def _answer(self, data: bytes) -> Reply:
        """The answer to a right request; a server with too many connections may ask to wait."""
        until = time.monotonic() + 60
        while True:
            answers = replies(exchange(self.address, data, quiet=60))
            if answers and answers[0].status == 200:
                return answers[0]
            assert time.monotonic() < until, answers
            assert not answers or answers[0].status == 503, answers
            time.sleep(0.1)


SIDES = ("before", "after")


@contextlib.contextmanager
def target(folder: Path) -> Iterator[Target]:
    with Target(folder / "data") as one:
        yield one


def run(one: Target, seed: int, goes_on: Callable[[int], bool]) -> int:
    """Sends batches as long as a function of the requests so far says so; how many requests."""
    sent = 0
    while goes_on(sent):
        one.batch(seed, BATCH)
        sent, seed = sent + BATCH, seed + 1
    return sent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder, target(Path(folder)) as one:
        sent = run(one, options.seed, lambda _: time.monotonic() < until)
        growth = (one.peak - one.begun) / 1e6
        print(f"{sent} requests, answers {dict(sorted(one.statuses.items()))}, +{growth:.0f} MB")


if __name__ == "__main__":
    main()
