"""The server without a browser: what it answers, what it refuses, and the one-line errors."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cc_prep import storage
from cc_prep.media import images
from cc_train.pretrained import Captioner
from cc_train.serve import application
from cc_train.serve.caption_service import CaptionService
from cc_train.serve.collection import Collection
from cc_train.serve.server import Server
from cc_train.sharing import hub
from tests.commands import cc_train
from tests.network_factory import TALKATIVE_SIZE, TALKATIVE_WORDS, Talkative


def encoded(side: int = 20, codec: str = "png", seed: int = 0) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)
    return images.encode_image(noise, codec, 90)


def sent(data: bytes, name: str = "a.png") -> dict[str, str]:
    return {"name": name, "data": base64.b64encode(data).decode()}


PAIR = {"before": sent(encoded()), "after": sent(encoded(seed=1))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve")
    for side in ("before", "after"):
        (path / f"x_{side}.png").write_bytes(encoded(seed=len(side)))
    (path / "far.csv").write_text("before,after\nx_before.png,http://127.0.0.1:1/a.png\n")
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    service = CaptionService(Captioner(Talkative(), Path()), "talkative")
    pair = (str(folder / "x_before.png"), str(folder / "x_after.png"))
    with Server(service, [pair], [pair], Collection(folder / "mine")) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        yield one
        one.shutdown()


def ask(
    server: Server,
    method: str,
    path: str,
    content: Any = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    base = {"Content-Type": "application/json"} if method == "POST" else {}
    connection.request(
        method, path, body if method == "POST" else None, {**base, **(headers or {})}
    )
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    kind = answer.headers.get_content_type()
    return answer.status, json.loads(data) if kind == "application/json" else data


def test_a_caption_with_all_that_is_known_of_it(server: Server) -> None:
    status, value = ask(server, "POST", "/caption", {**PAIR, "beams": 3})
    assert status == 200
    assert value["caption"] == "the cube moved"
    assert value["confidence"] == 0.75
    assert [beam["score"] for beam in value["beams"]] == [0, -1, -2]
    assert [one["word"] for one in value["words"]] == list(TALKATIVE_WORDS)
    before, after = value["words"][1]["images"]
    assert before != after != value["words"][0]["images"][1]
    mask = images.decode(base64.b64decode(value["mask"].partition(",")[2]), "mask")
    assert mask.shape[:2] == TALKATIVE_SIZE
    assert value["regions"] == [
        {"class": 1, "colour": "#ff2800", "share": 16 / 256},
        {"class": 2, "colour": "#006eff", "share": 8 / 256},
    ]
    assert len(value["imagined"]) == 3
    first = images.decode(base64.b64decode(value["imagined"][0].partition(",")[2]), "first")
    assert first.shape == (*TALKATIVE_SIZE, 3)
    assert ask(server, "POST", "/caption", PAIR)[1]["beams"] == []
    assert value["raw_caption"] is None
    same = ask(server, "POST", "/caption", {**PAIR, "after": PAIR["before"]})[1]
    assert (same["caption"], same["raw_caption"]) == ("the two images are equal", "the cube moved")
    assert same["regions"] == same["words"] == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"after": sent(encoded(24))}, "the image before is 20×20 px and the image after 24×24 px"),
        ({"after": sent(b"no image", "b.png")}, "b.png: no image in PNG"),
        ({"after": sent(b"", "b.mp4")}, "b.mp4: is a video. Give an image"),
        ({"after": None}, "no image after"),
        ({"after": {"data": "§"}}, "not base64"),
        ({"beams": 0}, "0 beams. Give 1 to 10"),
        ({"beams": "many"}, "the beams are no number"),
    ],
)
def test_mistakes_are_one_line(server: Server, change: dict[str, Any], line: str) -> None:
    status, value = ask(server, "POST", "/caption", {**PAIR, **change})
    assert status == 400
    assert line in value["error"]
    assert "\n" not in value["error"]


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("GET", "/about", None, {"Host": "evil.example:80"}, 403),
        ("POST", "/caption", PAIR, {"Origin": "http://evil.example"}, 403),
        ("POST", "/caption", PAIR, {"Content-Type": "text/plain"}, 415),
        ("POST", "/caption", b"[1]", None, 400),
        ("POST", "/caption", b"[" * 5000, None, 400),
        ("POST", "/caption", b"", {"Content-Length": "100000001"}, 413),
        ("POST", "/about", {}, None, 405),
        ("GET", "/page/page.html", None, None, 404),
        ("GET", "/examples/../before", None, None, 404),
        ("GET", "/examples/1/before", None, None, 404),
        ("GET", "/examples/-1/before", None, None, 404),
        ("GET", "/lists/0/before", None, None, 404),
        ("GET", "/pairs/..%2F..%2Fx/before", None, None, 404),
        ("GET", "/pairs/none/before", None, None, 400),
    ],
)
def test_what_no_user_of_the_page_asks(
    server: Server, method: str, path: str, content: Any, headers: Any, status: int
) -> None:
    """Keeps away: other web sites that read or write here, and files outside the lists."""
    assert ask(server, method, path, content, headers)[0] == status


def test_too_large_images_have_their_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: "The server does not answer", where it closed the socket on what is still sent.

    The body is larger than what the buffers of two sockets take.
    """
    monkeypatch.setattr(application, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(application, "MAX_IMAGE_BYTES", 750_000)
    status, value = ask(server, "POST", "/caption", b"x" * 20_000_000)
    assert (status, value) == (413, {"error": "the images have more than 0.75 MB"})


@pytest.mark.parametrize("half", [b"{", b"", None])
def test_a_closed_tab_prints_no_traceback(
    server: Server, capfd: pytest.CaptureFixture[str], half: bytes | None
) -> None:
    """Keeps away: a traceback in the terminal of whoever closes a tab in the middle of what it
    sends, or before it is answered.
    """
    body = json.dumps(PAIR).encode() if half is None else half
    length = str(len(body) if half is None else 100)
    with socket.create_connection(server.server_address, timeout=60) as connection:
        connection.sendall(
            b"POST /caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: " + length.encode() + b"\r\n\r\n" + body
        )
    assert ask(server, "POST", "/caption", PAIR)[0] == 200
    assert capfd.readouterr().err == ""


def test_other_faults_of_the_server_are_shown(
    server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: a fault of our own that nobody hears of, or a page that says that the server is
    gone.
    """
    monkeypatch.setattr(server.service, "caption", lambda *values: 1 / 0)
    assert ask(server, "POST", "/caption", PAIR) == (500, {"error": application.FAULT})
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "captions", "contradicts"),
    [
        ("change", ["Nothing has changed."], True),
        ("no_change", ["nothing changed"], False),
        ("change", ["nothing changed", "the cube moved"], False),
    ],
)
def test_a_kind_that_its_captions_deny_is_told(
    server: Server, kind: str, captions: list[str], contradicts: bool
) -> None:
    """Keeps away: pairs marked as changed, whose only caption says that nothing did."""
    pair = {**PAIR, "id": "odd", "captions": captions, "split": "train", "kind": kind}
    assert ask(server, "POST", "/pairs", pair)[1]["contradicts"] is contradicts
    ask(server, "POST", "/pairs/remove", {"id": "odd"})


def test_a_pair_is_replaced_if_it_is_edited_alone(server: Server) -> None:
    """Keeps away: a second pair of one name that takes the place of the first."""
    pair = {**PAIR, "id": "once", "captions": ["x"], "split": "train", "kind": "change"}
    assert ask(server, "POST", "/pairs", pair)[0] == 200
    status, value = ask(server, "POST", "/pairs", {**pair, "captions": ["y"]})
    assert status == 400
    assert value["error"].startswith("another pair is called 'once'. Give another name")
    edited = {**pair, "id": "renamed", "replaces": "once"}
    assert ask(server, "POST", "/pairs", edited)[0] == 200
    ids = [row["id"] for row in ask(server, "GET", "/pairs")[1]]
    assert "renamed" in ids
    assert "once" not in ids


def test_a_pair_that_cannot_be_stored_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a page that says that the server is gone, where its disk is full."""

    def full(*values: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "write_bytes", full)
    pair = {**PAIR, "id": "full", "captions": ["x"], "split": "train", "kind": "change"}
    status, value = ask(server, "POST", "/pairs", pair)
    assert status == 400
    assert value["error"].startswith("full cannot be stored (No space left on device). Check")
    assert all(row["id"] != "full" for row in ask(server, "GET", "/pairs")[1])


def test_files_of_the_page_allow_nothing_from_elsewhere(server: Server) -> None:
    for path in application.PAGE:
        status, text = ask(server, "GET", path)
        assert status == 200
        assert b"http" not in text.replace(b"http://127", b"")
    assert ask(server, "GET", "/examples/0/after")[1] == encoded(seed=len("after"))
    assert ask(server, "GET", "/about")[1]["examples"] == 1


@pytest.mark.parametrize(
    ("host", "name", "answers"),
    [
        ("127.0.0.1", "localhost:80", True),
        ("127.0.0.1", "192.168.0.7:80", False),
        ("0.0.0.0", "192.168.0.7:80", True),
        ("0.0.0.0", "[fe80::1]:80", True),
        ("0.0.0.0", "evil.example:80", False),
        ("0.0.0.0", "[", False),
        ("0.0.0.0", socket.gethostname().upper(), True),
    ],
)
def test_it_answers_to_its_own_names(host: str, name: str, answers: bool) -> None:
    """Keeps away: a page of others whose name means this machine, with any --host."""
    with Server(CaptionService(Captioner(Talkative(), Path()), "x"), host=host) as one:
        assert one.is_called(name) == answers


def test_other_pages_cannot_show_its_images(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    connection.request("GET", "/queue/0/before")
    assert connection.getresponse().headers["Cross-Origin-Resource-Policy"] == "same-origin"
    connection.close()


def test_half_a_character_is_one_line(server: Server) -> None:
    """Keeps away: a traceback, since JSON can hold what UTF-8 cannot."""
    pair = {**PAIR, "id": "half", "captions": ["\ud83d"], "split": "train", "kind": "change"}
    status, value = ask(server, "POST", "/pairs", pair)
    assert (status, value["error"][:34]) == (400, "a caption with half a character. W")


def test_it_ends_when_no_pair_is_being_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: images without a row, where Ctrl-C comes in the middle of a save."""
    collection = Collection(folder / "ended")
    server = Server(CaptionService(Captioner(Talkative(), Path()), "x"), (), (), collection)
    begun, go_on = threading.Event(), threading.Event()
    write = storage.write_bytes

    def slow(*values: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return write(*values)

    def ended() -> None:
        saving.start()
        assert begun.wait(60)
        threading.Timer(0.2, go_on.set).start()
        raise KeyboardInterrupt

    images = (encoded(), encoded(seed=1))
    saving = threading.Thread(target=collection.put, args=("a", *images, ["x"], "train", "change"))
    monkeypatch.setattr(storage, "write_bytes", slow)
    monkeypatch.setattr(server, "serve_forever", ended)
    monkeypatch.setattr("cc_train.serve.server.make", lambda *values, **named: server)
    done = cc_train("serve")
    assert (folder / "ended/pairs.jsonl").exists()
    assert done.stdout.splitlines()[-1] == "ended"


def test_a_captioner_here_has_the_name_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a page without a name of `cc-train serve .`."""
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    assert [hub.name_of(path) for path in (".", "someone/x", "captioner-mini")] == [
        "mine", "x", "captioner-mini",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nowhere",), "nowhere: no checkpoint of a run"),
        (("captioner-mini", "--pairs", "nowhere"), "--pairs without --collect"),
        (("captioner-mini", "--examples", "nowhere.csv"), "nowhere.csv"),
        (("captioner-mini", "--collect", "x_before.png"), "x_before.png: "),
        (("captioner-mini", "--host", "203.0.113.1"), "203.0.113.1, port 7860"),
        (("captioner-mini", "--examples", "far.csv"), "far.csv: pair 1 is at an address"),
    ],
)
def test_mistakes_of_the_command(
    folder: Path, arguments: tuple[str, ...], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = cc_train("serve", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert line in done.stderr


def test_without_its_extra_it_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a traceback of an import."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = cc_train("serve")
    assert "cc-train serve needs uvicorn" in done.stderr
    assert "pip install '.[serve]'" in done.stderr


def test_a_port_that_is_taken(server: Server) -> None:
    done = cc_train("serve", "--port", server.server_address[1])
    assert done.returncode == 2
    assert "Give another --host or --port" in done.stderr
