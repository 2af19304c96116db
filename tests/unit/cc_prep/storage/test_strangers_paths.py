"""What a stranger's list may name: no file that blocks or has no end, no store but known ones."""

from __future__ import annotations

import base64
import http.server
import json
import os
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import yarl

from cc_prep import storage
from cc_prep.errors import FileRefused, FileTooLarge, JobFailed, RejectedPair, UserError
from cc_prep.media import images, video
from cc_prep.storage import http_client, object_store


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "MAX_PAUSE", 0.0)


class Handler(http.server.BaseHTTPRequestHandler):
    """Redirects, an answer without an end, a file with and one without ranges."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        here = f"http://127.0.0.1:{self.server.server_address[1]}"
        if self.path.startswith("/to="):
            self.send_response(302)
            self.send_header("Location", self.path[4:].replace("HERE", here))
            self.end_headers()
        elif self.path == "/circle":
            self.send_response(302)
            self.send_header("Location", "/circle")
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                self.server.asked.append("closed")  # type: ignore[attr-defined]
        elif self.path.startswith("/status="):
            self.send_error(int(self.path[8:]))
        elif self.path == "/parts" and "Range" in self.headers:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            self.answer(206, b"0123456789"[int(first) : int(last) + 1])
        elif self.path in ("/parts", "/whole"):
            self.answer(200, b"0123456789")
        else:
            self.send_error(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


@pytest.fixture
def web(server: http.server.ThreadingHTTPServer) -> str:
    server.asked.clear()  # type: ignore[attr-defined]
    return f"http://127.0.0.1:{server.server_address[1]}"


RUNS_CODE = (
    "reference://a::data:application/json;base64,"
    + base64.b64encode(json.dumps({"version": 1, "refs": {"a": "{{ 6 * 7 }}"}}).encode()).decode()
)


@pytest.mark.parametrize(
    "path",
    [
        RUNS_CODE,
        "simplecache::http://127.0.0.1:9/x.png",
        "zip://a.png::file://x.zip",
        "data://image/png;base64,AAAA",
        "python://os",
        "github://a:b@main/x.png",
        "dir://x::file:///etc",
        "local:///etc/passwd",
        "arrow_hdfs://x/y",
        "generic://x",
        "asyncwrapper://x",
        "smb://127.0.0.1/x",
        "FILE:///etc/passwd",
        "file::///etc/passwd",
        "://x",
    ],
)
def test_a_store_that_is_not_listed_is_refused(path: str) -> None:
    """Keeps away: a cell in a stranger's list that runs a command, by fsspec's `reference://`."""
    with pytest.raises(FileRefused, match=r"is no kind of store\. Give a path, or "):
        storage.read_bytes(path)
    with pytest.raises(FileRefused):
        storage.list_files(path)
    with pytest.raises(RejectedPair, match="unreadable image"):
        images.read(path)


@pytest.mark.parametrize("path", ["cached::file:/etc/hostname", "a::b", "file:///no/such/file"])
def test_what_is_no_url_is_a_missing_file(path: str) -> None:
    with pytest.raises(RejectedPair, match="missing image"):
        images.read(path)


def test_a_key_may_hold_two_colons() -> None:
    """Keeps away: the rest of a name that is taken for another store."""
    storage.write_bytes("memory://colons/a::b.png", b"1")
    assert storage.read_bytes("memory://colons/a::b.png") == b"1"


@pytest.mark.parametrize("path", ["http://[::1", "http://127.0.0.1:99999/x.png", "http:///x"])
def test_a_wrong_address_is_asked_once(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a minute of tries, and a traceback, for a port that cannot be."""
    monkeypatch.setattr(object_store, "TRIES", 1)
    with pytest.raises(RejectedPair, match="unreadable image: http:"):
        images.read(path)


def test_a_redirect_stays_on_its_host(web: str, server: http.server.HTTPServer) -> None:
    """Keeps away: a stranger's address that lets this machine ask others in its network."""
    assert storage.read_bytes(f"{web}/to=HERE/whole") == b"0123456789"
    assert storage.read_bytes(f"{web}/to=/whole") == b"0123456789"
    for target in (
        "http://localhost:1/x",
        "https://127.0.0.1/x",
        "file:///etc/passwd",
        "//localhost/x",
    ):
        with pytest.raises(FileRefused, match="redirects to another place"):
            storage.read_bytes(f"{web}/to={target}")
        with pytest.raises(FileRefused, match="redirects to another place"):
            storage.size(f"{web}/to={target}")
    assert len(server.asked) == 4 + 3 * 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("target", "stays"),
    [
        ("https://a.org/y", True),
        ("http://a.org:80/y", True),
        ("https://a.org:8443/y", False),
        ("https://b.org/x", False),
    ],
)
def test_a_host_may_send_to_its_https(target: str, stays: bool) -> None:
    """Keeps away: a refusal of the redirect that most hosts answer http with."""
    assert http_client.stays_on_host(yarl.URL("http://a.org/x"), yarl.URL(target)) == stays
    assert not http_client.stays_on_host(yarl.URL("https://a.org/x"), yarl.URL("http://a.org/x"))


def test_a_circle_of_redirects_is_walked_once(web: str, server: http.server.HTTPServer) -> None:
    """Keeps away: ninety requests and a minute for one address of a stranger."""
    with pytest.raises(FileRefused, match="redirects in a circle"):
        storage.read_bytes(f"{web}/circle")
    assert len(server.asked) <= 10  # type: ignore[attr-defined]


def test_an_answer_has_an_end(web: str, server: http.server.HTTPServer) -> None:
    """Keeps away: an address that answers for ever, and fills the memory."""
    with pytest.raises(FileTooLarge, match="/endless: has more than 1,000 bytes"):
        storage.read_bytes(f"{web}/endless", 1000)
    assert storage.read_bytes(f"{web}/whole", 10) == b"0123456789"
    assert storage.read_range(f"{web}/endless", 0, 7) == bytes(7)


def test_a_part_of_a_file_on_the_web(web: str) -> None:
    """Keeps away: the start of a shard in the place of a sample, from a server without ranges."""
    assert storage.read_range(f"{web}/parts", 3, 4) == b"3456"
    with pytest.raises(FileRefused, match="the server gives no parts of files"):
        storage.read_range(f"{web}/whole", 3, 4)


@pytest.mark.parametrize("status", [400, 403, 410])
def test_an_answer_of_the_web_that_stays(
    web: str, server: http.server.HTTPServer, status: int
) -> None:
    """Keeps away: nine requests for what is refused; "missing" for a file that is there."""
    with pytest.raises(FileRefused, match=f"the server answers {status}"):
        storage.read_bytes(f"{web}/status={status}")
    assert len(server.asked) == 1  # type: ignore[attr-defined]
    with pytest.raises(FileRefused, match=f"the server answers {status}"):
        storage.size(f"{web}/status={status}")


def test_a_server_that_fails_is_asked_again(web: str, server: http.server.HTTPServer) -> None:
    with pytest.raises(JobFailed, match="failed 9 times"):
        storage.read_bytes(f"{web}/status=503")


def test_a_file_that_is_not_on_the_web_is_missing(web: str) -> None:
    """Keeps away: another type of error for its size, by which nobody knows that it is missing."""
    for ask in (storage.read_bytes, storage.size, storage.open_read):
        with pytest.raises(FileNotFoundError):
            ask(f"{web}/nothing")


@pytest.fixture(params=["pipe", "device", "loop", "folder", "long", "nul", "sparse"])
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "0.png"
    kind = request.param
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(6 * 2**30)
    names = {"long": "x" * 300, "nul": "a\0b"}
    return str(tmp_path / names.get(kind, path.name))


def test_a_file_that_is_none_is_refused(odd: str) -> None:
    """Keeps away: a pipe for whose writer a job waits for ever; a device or a sparse file that
    fills the memory; a link to itself that ends the command by an errno."""
    with pytest.raises(FileRefused):
        storage.read_bytes(odd)
    with pytest.raises(RejectedPair, match=r"unreadable image|image too large"):
        images.read(odd)


def test_a_video_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    """Keeps away: 30 s without an answer for each frame."""
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(RejectedPair, match="no regular file"):
        video.count_frames(str(tmp_path / "a.mp4"))


def test_a_file_that_becomes_a_pipe_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "0.png"
    path.write_bytes(b"")
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(os, "stat", lambda _: before)
    with pytest.raises(FileRefused, match="no regular file"):
        storage.read_bytes(str(path))


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    """Keeps away: memory of the bound for each image, which takes longer than the image, and fails
    where the kernel grants no more than there is."""
    (tmp_path / "a").write_bytes(b"0123")
    tracemalloc.start()
    assert storage.read_bytes(str(tmp_path / "a"), 2**29) == b"0123"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_a_file_without_a_size_is_bounded() -> None:
    """Keeps away: a file of /proc, whose size is 0, that is read without a bound, or not whole."""
    assert storage.read_bytes("/proc/self/status").count(b"\n") > 5
    with pytest.raises(FileTooLarge):
        storage.read_bytes("/proc/self/status", 10)


def test_a_range_ends_with_its_file(tmp_path: Path) -> None:
    """Keeps away: memory for the size that a stranger's index states."""
    (tmp_path / "a").write_bytes(b"0123")
    assert storage.read_range(str(tmp_path / "a"), 2, 2**62) == b"23"
    assert storage.read_range(str(tmp_path / "a"), 9, 2**62) == b""


def test_one_odd_name_leaves_the_others_of_its_folder(tmp_path: Path) -> None:
    """Keeps away: a link to itself among the images that ends the listing of all."""
    (tmp_path / "a.png").touch()
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "gone.png").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    assert storage.list_files(str(tmp_path)) == ["a.png", "gone.png", "loop.png"]
    assert storage.list_folders(str(tmp_path)) == ["folder"]
    assert storage.sizes(str(tmp_path)) == {"a.png": 0}


def test_a_folder_that_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UserError, match=rf"^{tmp_path}: Permission denied\. Make it readable$"):
        storage.list_files(str(tmp_path))
