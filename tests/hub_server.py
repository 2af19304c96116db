"""A stand-in for the hub's server: as much of its HTTP API as upload and download of a repository
take, in memory, at an address of this machine.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """repositories: by id the files by path. private: ids of those that are. objects: large files
    by SHA-256. commits: the number of them.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.commits = 0
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

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
        return self._json({"error": f"no {path}"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"POST {path}")
        if path == "/api/repos/create":
            value = json.loads(body)
            id = f"{value['organization']}/{value['name']}"
            if id in self.server.repositories:
                return self._json({"error": "exists", "url": f"{self.server.address}/{id}"}, 409)
            self.server.repositories[id] = {}
            if value.get("private") or value.get("visibility") == "private":
                self.server.private.add(id)
            return self._json({"url": f"{self.server.address}/{id}"})
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False}
                     for f in files]  # fmt: skip
            return self._json({"files": modes})
        if path.endswith("/info/lfs/objects/batch"):
            return self._json({"transfer": "basic", "objects": self._uploads(json.loads(body))})
        if match := re.fullmatch(r"/api/models/(\w+/[\w-]+)/commit/main", path):
            return self._commit(match[1], body)
        return self._json({"error": f"no {path}"}, 404)

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.objects[hashlib.sha256(content).hexdigest()] = content
        self._json({})

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
        self._json(
            {"success": True, "commitOid": COMMIT, "commitUrl": f"{address}/commit/{COMMIT}"}
        )

    def _info(self, id: str, revision: str) -> None:
        if id not in self.server.repositories:
            return self._json({"error": "Repository not found"}, 404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._json({"error": "Invalid rev id"}, 404, "RevisionNotFound")
        files = self.server.repositories[id]
        siblings = [{"rfilename": name} for name in sorted(files)]
        return self._json({"id": id, "modelId": id, "sha": COMMIT, "tags": [],
                           "private": id in self.server.private, "downloads": 0, "likes": 0,
                           "siblings": siblings})  # fmt: skip

    def _tree(self, id: str) -> None:
        files = self.server.repositories[id]
        self._json([
            {"type": "file", "path": name, "size": len(content), "oid": _oid(content)}
            for name, content in sorted(files.items())
        ])  # fmt: skip

    def _file(self, id: str, name: str) -> None:
        content = self.server.repositories.get(id, {}).get(name)
        if content is None:
            return self._json({"error": "Entry not found"}, 404, "EntryNotFound")
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{_oid(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200, error: str = "") -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if error:
            self.send_header("X-Error-Code", error)
            self.send_header("X-Error-Message", value["error"])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """The library's requests are kept in `requests`, not printed."""


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
