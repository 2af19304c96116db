"""Stand-ins for servers elsewhere, at an address of this machine: a chat's and the hub's.

The chat is OpenAI-compatible. It checks the form of every request, and answers with a sentence that
is made of what it was sent. The hub has as much of its HTTP API as upload and download of a
repository take, in memory.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import cv2
import numpy as np

KEY = "sk-a-secret-that-nobody-may-see"
MODEL = "seer"
COMPLETIONS, OLLAMA = "/v1/chat/completions", "/api/chat"
COMMIT = "c" * 40


class Handler(BaseHTTPRequestHandler):
    """What both servers answer with."""

    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def reply(
        self, value: Any, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        """Sends bytes as they are, and any other value as JSON."""
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        kind = "application/octet-stream" if content is value else "application/json"
        sent = {"Content-Length": str(len(content)), "Content-Type": kind, **(headers or {})}
        self.send_response(status)
        for name, text in sent.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed
                self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are kept, not printed."""


class Server(ThreadingHTTPServer):
    """At a free port. requests: of all that came, the method and the path."""

    daemon_threads = True

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def release_all(self) -> None:
        """Lets requests go that are held."""


AnyServer = TypeVar("AnyServer", bound=Server)


@contextlib.contextmanager
def serving(server: AnyServer) -> Iterator[AnyServer]:
    """Within the block the server answers."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.release_all()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass(frozen=True)
class Trouble:
    """What is replied in place of an answer. broken: the connection ends without a reply."""

    status: int = 500
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = field(default_factory=dict)
    broken: bool = False


@dataclass(frozen=True)
class Said:
    """An answer with more than its text. thoughts: in the field that `field` names."""

    text: str | None
    thoughts: str | None = None
    field: str = "reasoning_content"
    ended: str = "stop"


class ChatServer(Server):
    """troubles: what the next requests get, first to last. seen: how often each pair was answered,
    by the means of its images. bodies, headers: of all requests but probes, which are about plain
    colors. hold: requests that come once so many were answered get no reply before `release`, and
    none after it.

    sight: what the model sees of two images that chat completions were given. refusal: what chat
    completions with images get in place of an answer. own_door: whether Ollama's is there too.
    shots: how many examples come before the question.
    """

    def __init__(self, answer: Callable[[float, float], str | Said | Trouble] | None = None):
        super().__init__(_ChatHandler)
        self.answer = answer or (lambda before, after: f"from {before:.0f} to {after:.0f}")
        self.troubles: list[Trouble] = []
        self.seen: Counter[tuple[int, int]] = Counter()
        self.sight: Callable[[list[np.ndarray]], list[np.ndarray]] = list
        self.refusal: Trouble | None = None
        self.own_door, self.shots = False, 0
        self.probes: list[dict[str, Any]] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.hold: int | None = None
        self.held, self.release = threading.Event(), threading.Event()
        self.lock = threading.Lock()
        self.under_way = self.most_under_way = 0

    @property
    def address(self) -> str:
        return f"{super().address}/v1"

    def release_all(self) -> None:
        self.release.set()


class _ChatHandler(Handler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.body())
        server = self.server
        is_probe = _is_colored(_images(body))
        with server.lock:
            server.requests.append(self.path)
            if is_probe:
                server.probes.append(body)
            else:
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
            trouble = server.troubles.pop(0) if server.troubles and not is_probe else None
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            hold = server.hold is not None and server.seen.total() >= server.hold
        try:
            if hold and not is_probe:  # until nobody waits for the reply any more
                server.held.set()
                server.release.wait(30)
                trouble = Trouble(broken=True)
            self._answer(body, trouble)
        finally:
            with server.lock:
                server.under_way -= 1

    def _answer(self, body: dict[str, Any], trouble: Trouble | None) -> None:
        if trouble is not None and trouble.broken:
            self.close_connection = True
            return None
        if trouble is not None:
            return self.reply(trouble.body, trouble.status, trouble.headers)
        server = self.server
        is_own = server.own_door and self.path == OLLAMA
        known = is_own or self.path.partition("?")[0] == COMPLETIONS
        if not known or body["model"] != MODEL:
            return self.reply({"error": {"message": f"no {body['model']}"}}, 404)
        images = _images(body)
        shots = 0 if _is_colored(images) else server.shots
        _check_form(body, shots, is_own)
        images = images[2 * shots :]
        if not is_own:
            if server.refusal is not None:
                return self.reply(server.refusal.body, server.refusal.status)
            images = server.sight(images)
        answer: str | Said | Trouble
        if _is_colored(images):
            answer = f"The colors are {' and '.join(map(_color, images))}."
        else:
            before, after = (float(image.mean()) for image in (images[0], images[-1]))
            with server.lock:
                server.seen[round(before), round(after)] += 1
            answer = server.answer(before, after)
        if isinstance(answer, Trouble):
            return self.reply(answer.body, answer.status, answer.headers)
        said = answer if isinstance(answer, Said) else Said(answer)
        thoughts = {} if said.thoughts is None else {said.field: said.thoughts}
        message = {"role": "assistant", "content": said.text, **thoughts}
        if is_own:
            return self.reply({"message": message, "done": True, "done_reason": said.ended})
        choice = {"index": 0, "message": message, "finish_reason": said.ended}
        return self.reply({"object": "chat.completion", "choices": [choice]})


def _check_form(body: dict[str, Any], shots: int, is_own: bool) -> None:
    """Asserts that a request has exactly the form that is documented."""
    messages = body["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant"] * shots + ["user"]
    assert all(isinstance(one["content"], str) for one in messages[1::2])
    for message in messages[::2]:
        if is_own:
            assert isinstance(message["content"], str)
            assert len(message["images"]) == 2
            assert body["stream"] is False
            continue
        kinds = [part["type"] for part in message["content"]]
        assert kinds == ["text", "image_url", "text", "image_url", "text"], kinds


def _images(body: dict[str, Any]) -> list[Any]:
    """All images of a request, BGR, in their order, at whichever door."""
    encoded = []
    for message in body["messages"]:
        encoded += message.get("images", [])
        parts = message["content"] if isinstance(message["content"], list) else []
        for part in parts:
            if part["type"] == "image_url":
                head, _, data = part["image_url"]["url"].partition(",")
                assert head == "data:image/png;base64"
                encoded.append(data)
    contents = (base64.b64decode(data, validate=True) for data in encoded)
    return [cv2.imdecode(np.frombuffer(content, np.uint8), 1) for content in contents]


def _is_colored(images: list[Any]) -> bool:
    """Whether images are of a probe: those of the tests are grey, or hold a scene."""
    return bool(images) and all(
        image.std((0, 1)).max() == 0 and np.ptp(image[0, 0]) > 100 for image in images
    )


def _color(image: np.ndarray) -> str:
    return ("blue", "green", "red")[int(image[0, 0].argmax())]


class Hub(Server):
    """repositories: by id the files by path. private: ids of those that are. objects: large files
    by SHA-256. commits: the number of them.
    """

    def __init__(self) -> None:
        super().__init__(_HubHandler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.commits = 0


class _HubHandler(Handler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)(?:/revision/(.+))?", path):
            return self._info(match[1], match[2] or "main")
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)/tree/[^/]+", path):
            return self._tree(match[1])
        if match := re.fullmatch(r"/(\w+/[\w-]+)/resolve/[^/]+/(.+)", path):
            return self._file(match[1], match[2])
        return self.reply({"error": f"no {path}"}, 404)

    def do_POST(self) -> None:
        body = self.body()
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            value = json.loads(body)
            id = f"{value['organization']}/{value['name']}"
            if id in self.server.repositories:
                return self.reply({"error": "exists", "url": f"{self.server.address}/{id}"}, 409)
            self.server.repositories[id] = {}
            if value.get("private") or value.get("visibility") == "private":
                self.server.private.add(id)
            return self.reply({"url": f"{self.server.address}/{id}"})
        if path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False}
                     for f in files]  # fmt: skip
            return self.reply({"files": modes})
        if path.endswith("/info/lfs/objects/batch"):
            return self.reply({"transfer": "basic", "objects": self._uploads(json.loads(body))})
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)/commit/main", path):
            return self._commit(match[1], body)
        return self.reply({"error": f"no {path}"}, 404)

    def do_PUT(self) -> None:
        content = self.body()
        self.server.objects[hashlib.sha256(content).hexdigest()] = content
        self.reply({})

    def _uploads(self, value: dict[str, Any]) -> list[dict[str, Any]]:
        href = f"{self.server.address}/objects"
        return [
            {"oid": one["oid"], "size": one["size"], "actions": {"upload": {"href": href}}}
            for one in value["objects"]
        ]

    def _commit(self, id: str, body: bytes) -> None:
        files = self.server.repositories[id]
        self.server.commits += 1
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        address = f"{self.server.address}/{id}"
        self.reply(
            {"success": True, "commitOid": COMMIT, "commitUrl": f"{address}/commit/{COMMIT}"}
        )

    def _info(self, id: str, revision: str) -> None:
        if id not in self.server.repositories:
            return self._refuse("RepoNotFound", "Repository not found")
        if revision not in ("main", COMMIT):
            return self._refuse("RevisionNotFound", "Invalid rev id")
        files = self.server.repositories[id]
        siblings = [{"rfilename": name} for name in sorted(files)]
        return self.reply({"id": id, "modelId": id, "sha": COMMIT, "tags": [],
                           "private": id in self.server.private, "downloads": 0, "likes": 0,
                           "siblings": siblings})  # fmt: skip

    def _tree(self, id: str) -> None:
        files = self.server.repositories[id]
        self.reply([
            {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
            for name, content in sorted(files.items())
        ])  # fmt: skip

    def _file(self, id: str, name: str) -> None:
        content = self.server.repositories.get(id, {}).get(name)
        if content is None:
            return self._refuse("EntryNotFound", "Entry not found")
        self.reply(content, headers={"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT})

    def _refuse(self, error: str, words: str) -> None:
        headers = {"X-Error-Code": error, "X-Error-Message": words}
        self.reply({"error": words}, 404, headers)


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class DatasetHub(Server):
    """The hub, as far as a data set's files are read by ranges. files: by path, of `own/pairs`."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(_DatasetHandler)
        self.files = files


class _DatasetHandler(Handler):
    server: DatasetHub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        if re.fullmatch(r"/api/datasets/own/pairs(/revision/main)?", path):
            about = {"id": "own/pairs", "sha": COMMIT, "siblings": [], "tags": [], "private": False}
            return self.reply({**about, "downloads": 0, "likes": 0})
        if match := re.fullmatch(r"/api/datasets/own/pairs/tree/main/?(.*)", path):
            entries = self._entries(match[1])
            return self.reply(entries) if entries else self._refuse()
        if match := re.fullmatch(r"/datasets/own/pairs/resolve/main/(.+)", path):
            content = self.server.files.get(match[1])
            return self._refuse() if content is None else self._content(content)
        return self._refuse()

    def do_POST(self) -> None:
        paths = json.loads(self.body())["paths"]
        within = (self._entries(path.rpartition("/")[0]) for path in paths)
        known = {entry["path"]: entry for entries in within for entry in entries}
        self.reply([known[path] for path in paths if path in known])

    def _entries(self, folder: str) -> list[dict[str, Any]]:
        """What is directly in a folder."""
        prefix = f"{folder}/" if folder else ""
        found = {}
        for name, content in self.server.files.items():
            if name.startswith(prefix):
                first, slash, _ = name.removeprefix(prefix).partition("/")
                size = 0 if slash else len(content)
                kind = "directory" if slash else "file"
                found[first] = {"type": kind, "path": prefix + first, "size": size, "oid": COMMIT}
        return [*found.values()]

    def _content(self, content: bytes) -> None:
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": COMMIT}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return self.reply(content, headers=headers)
        part = content[int(asked[1]) : int(asked[2] or len(content)) + 1]
        end = int(asked[1]) + len(part) - 1
        headers["Content-Range"] = f"bytes {asked[1]}-{end}/{len(content)}"
        self.reply(part, 206, headers)

    def _refuse(self) -> None:
        self.reply({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
