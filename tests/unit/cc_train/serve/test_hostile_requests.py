"""Requests that no browser sends: answered or refused, and bounded in memory and time."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.media import images
from cc_train.pretrained import Captioner
from cc_train.serve import application, connections
from cc_train.serve import server as page_server
from cc_train.serve.caption_service import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.server import Server
from tests.network_factory import Talkative
from tests.raw_http import Reply, exchange, received, replies, request

SECRET = b"TOPSECRET"
HOST = b"Host: 127.0.0.1\r\n"
CLOSE = (("Connection", "close"),)


def noise(side: int, codec: str = "png") -> bytes:
    values = np.random.default_rng(side).integers(0, 256, (side, side, 3)).astype(np.uint8)
    return images.encode_image(values, codec, 90)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    (path / "secret.png").write_bytes(SECRET)
    (path / "really_a.png").write_bytes(noise(20, "jpg"))
    (path / "large.png").write_bytes(noise(2000))  # 12 MB: more than two sockets buffer
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    names = ("secret.png", "really_a.png", "gone.png", "large.png", "clip.mp4#frame=1")
    pairs = [(str(folder / name), str(folder / name)) for name in names]
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    with Server(service, pairs, pairs, Collection(folder / "mine")) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_word(server: Server, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """After each test: the server answers, and the terminal shows nothing of it."""
    yield
    assert one_reply(server, request("GET", "/about", headers=CLOSE)).status == 200
    assert capfd.readouterr().err == ""


def one_reply(server: Server, *parts: bytes) -> Reply:
    [reply] = replies(exchange(server.server_address, *parts))
    return reply


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/queue/" + "9" * 5000 + "/before", 404),  # more digits than int() takes
        ("/queue/²/before", 400),
        ("/queue/%C2%B2/before", 404),
        ("/queue/%D9%A1/before", 200),  # a one, in another script
        ("/queue/00000000000001/before", 404),
        ("/pairs/%00/before", 400),
        ("http://evil.example/about", 404),
        ("//evil.example/about", 404),
        ("/about/", 404),  # and not a way to another address
        ("/queue/0/before/../../../secret.png", 404),
    ],
)
def test_odd_addresses(server: Server, path: str, status: int) -> None:
    """Keeps away: HTTP 500 and a traceback for a number of 5,000 digits."""
    reply = one_reply(server, request("GET", path, headers=CLOSE))
    assert reply.status == status
    assert SECRET not in reply.body


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"Content-Length: " + b"9" * 5000, 400),
        (b"Content-Length: 99999999999999", 413),
        (b"Content-Length: -1", 400),
        (b"Content-Length: 1_0", 400),
        (b"Content-Length: \xb2", 400),
        (b"Content-Length: 2\r\nContent-Length: 3", 400),
        (b"Host: localhost", 400),  # a second one
        (b"Transfer-Encoding: gzip", 501),
        (b"Transfer-Encoding : chunked", 400),
        (b"X: " + b"y" * 1_000_000, 431),
        (b"X: y\r\n" * 200_000, 431),
        (b"X: a\r\n b\x00", 400),
    ],
)
def test_odd_headers(server: Server, head: bytes, status: int) -> None:
    """Keeps away: a connection that ends without an answer, and a traceback in the terminal."""
    data = b"POST /caption HTTP/1.1\r\nContent-Type: application/json\r\nConnection: close\r\n"
    with socket.create_connection(server.server_address, timeout=10) as connection:
        with contextlib.suppress(ConnectionError):  # it is refused before it is all sent
            connection.sendall(data + HOST + head + b"\r\n\r\n{}")
        answers = replies(received(connection))
    # An answer to what is still being sent may be lost with the rest.
    assert [one.status for one in answers] == [status] or (status == 431 and not answers)


def test_a_body_is_never_taken_for_a_request(server: Server) -> None:
    """Keeps away: the body of a GET as the next request, which a proxy before us does not see."""
    inner = request("GET", "/pairs")
    smuggled = request("GET", "/about", headers=(("Content-Length", str(len(inner))),)) + inner
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(inner), inner)
    encoded = (("Transfer-Encoding", "chunked"),)
    last = request("GET", "/page.css", headers=CLOSE)
    both = replies(exchange(server.server_address, smuggled, last))
    assert [one.headers["content-type"][:9] for one in both] == ["applicati", "text/css;"]
    get = request("GET", "/about", headers=encoded) + chunks
    assert len(replies(exchange(server.server_address, get, last))) == 2


@pytest.mark.parametrize("length", ["", "Content-Length: 5\r\n"])
def test_a_body_without_a_length_is_refused(server: Server, length: str) -> None:
    """Keeps away: a body of any size in chunks, of which no length was told, or a wrong one."""
    head = b"POST /caption HTTP/1.1\r\nContent-Type: application/json\r\n" + length.encode() + HOST
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    after = request("GET", "/about", headers=CLOSE)
    both = replies(exchange(server.server_address, head + chunked, after))
    assert [one.status for one in both] == [411, 200]


def test_a_damaged_body_after_the_answer(server: Server) -> None:
    """Keeps away: a traceback where chunks turn out to be none after the request was refused."""
    head = b"POST /caption HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(server.server_address, timeout=10) as connection:
        connection.sendall(head)
        first = b""
        while not first.endswith(b"}"):  # the answer may come in parts
            first += connection.recv(1 << 16)
        connection.sendall(b"no chunk\r\n")
        assert received(connection) == b""
    assert [one.status for one in replies(first)] == [415]


def test_only_what_was_decoded_is_sent(server: Server, folder: Path) -> None:
    """Keeps away: a text file that a stranger's list calls .png, sent to the browser as it is; and
    the wrong type of one that is an image.
    """
    secret, jpeg, gone, _, clip = (
        one_reply(server, request("GET", f"/queue/{number}/before", headers=CLOSE))
        for number in range(5)
    )
    assert (secret.status, gone.status, clip.status) == (400, 400, 400)
    assert SECRET not in secret.body
    assert (jpeg.headers["content-type"], jpeg.body) == ("image/jpeg", noise(20, "jpg"))
    for reply, name in ((secret, "secret.png"), (gone, "gone.png"), (clip, "clip.mp4")):
        assert name in reply.error
        assert str(folder) not in reply.error  # where it lies is told nobody


def test_the_page_is_not_told_where_the_collection_lies(server: Server, folder: Path) -> None:
    table = folder / "mine/pairs.jsonl"
    table.write_text("{}\n")
    try:
        error = one_reply(server, request("GET", "/pairs", headers=CLOSE)).error
    finally:
        table.unlink()
    assert error.startswith("mine/pairs.jsonl: not a table of cc-train serve")


@pytest.mark.parametrize("value", [1.5, "[" * 900 + "]" * 900, {"a": 1}, "😀" * 100_000, "\ud800"])
@pytest.mark.parametrize("name", ["id", "replaces", "split", "beams", "before", "captions"])
def test_odd_values(server: Server, name: str, value: object) -> None:
    """Keeps away: a traceback for what JSON can hold and a name cannot, and an answer as long as
    the request.
    """
    if isinstance(value, str) and value.startswith("["):
        value = json.loads(value)
    image = {"name": "a.png", "data": base64.b64encode(noise(20)).decode()}
    pair = {"before": image, "after": image, "id": "x", "captions": ["x"], "split": "train"}
    content = json.dumps({**pair, "kind": "change", name: value}).encode()
    path = "/caption" if name in ("beams", "before") else "/pairs"
    reply = one_reply(server, request("POST", path, content, CLOSE))
    assert reply.status == 400
    assert 0 < len(reply.error) <= application.MAX_MESSAGE


def test_connections_are_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a thread and a socket for each of any number of connections that say nothing."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    threads = threading.active_count()
    with contextlib.ExitStack() as opened:
        for _ in range(3):
            one = opened.enter_context(socket.create_connection(server.server_address))
            one.sendall(b"POST /caption HTTP/1.1\r\n")
        reply = one_reply(server)
        assert (reply.status, reply.error) == (503, connections.BUSY)
        assert threading.active_count() <= threads
    until = time.monotonic() + 10
    while (
        replies(exchange(server.server_address, request("GET", "/about", headers=CLOSE)))[0].status
        != 200
        and time.monotonic() < until
    ):
        time.sleep(0.01)


def test_a_request_that_does_not_come_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: connections that are kept by a byte now and then (slow loris)."""
    monkeypatch.setattr(connections, "TRANSFER_SECONDS", 0.4)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    assert exchange(server.server_address) == b""
    kept = exchange(server.server_address, request("GET", "/about"))
    assert [one.status for one in replies(kept)] == [200]
    for half in (b"GET /about HTTP/1.1\r\n", request("POST", "/caption", b"{}")[:-1]):
        with socket.create_connection(server.server_address, timeout=10) as connection:
            begun = time.monotonic()
            connection.sendall(half[:-1])
            time.sleep(0.3)
            connection.sendall(half[-1:])  # which does not begin the time anew
            [reply] = replies(received(connection))
            assert (reply.status, reply.error) == (408, connections.SLOW)
            assert time.monotonic() - begun < 5


def test_an_answer_that_nobody_takes_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the memory of images that are held for whoever does not read them."""
    monkeypatch.setattr(connections, "TRANSFER_SECONDS", 0.3)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
        connection.settimeout(10)
        connection.connect(server.server_address)
        connection.sendall(request("GET", "/queue/3/before"))
        until = time.monotonic() + 10
        while server.application.bytes_held == 0 and time.monotonic() < until:
            time.sleep(0.01)
        held = server.application.bytes_held
        while server.application.bytes_held and time.monotonic() < until:
            time.sleep(0.01)
        assert (held > 10_000_000, server.application.bytes_held) == (True, 0)
        assert len(received(connection)) < held


def test_the_bytes_of_all_bodies_are_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: any number of bodies of 100 MB that are half sent."""
    monkeypatch.setattr(application, "MAX_BYTES_HELD", 100_000)
    large = request("POST", "/caption", b"x" * 80_000, CLOSE)
    with socket.create_connection(server.server_address) as connection:
        connection.sendall(large[:-1])
        until = time.monotonic() + 10
        while server.application.bytes_held == 0 and time.monotonic() < until:
            time.sleep(0.01)
        reply = one_reply(server, large)
        assert (reply.status, reply.error) == (503, application.FULL)
    while server.application.bytes_held and time.monotonic() < until:
        time.sleep(0.01)
    assert one_reply(server, large).status == 400  # it is no JSON


def test_where_an_image_lies_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: the address of a store that refuses, which the page shows to whoever reaches it;
    two remedies in a row."""

    def refused(path: str) -> bytes:
        raise UserError(f"{path}: refused", "Give other keys")

    monkeypatch.setattr(images, "read_encoded", refused)
    with pytest.raises(UserError) as error:
        application.image("s3://private/folder/a.png")
    assert str(error.value) == "a.png: refused. Give other keys"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/a.png", "s3://b/a"])
def test_addresses_are_asked_where_that_is_wanted(tmp_path: Path, address: str) -> None:
    """Keeps away: a stranger's list that has the server ask other machines for their files."""
    listed = tmp_path / "pairs.jsonl"
    listed.write_text(json.dumps({"before": "a.png", "after": address}) + "\n")
    with pytest.raises(UserError, match=r"pairs\.jsonl: pair 1 is at an address.*--fetch"):
        page_server._listed(listed, fetch=False)
    assert page_server._listed(listed, fetch=True)[0][1] == address
