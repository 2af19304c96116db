"""HTTP as bytes: what is sent to a server word for word, and a strict reading of its answers."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import dataclass

HEAD = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Za-z -]*\r\n((?:[A-Za-z-]+: [ -~]*\r\n)*)\r\n")


@dataclass(frozen=True)
class Reply:
    """headers: with names in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """What an answer that refuses says."""
        message: str = json.loads(self.body)["error"]
        return message


def exchange(address: tuple[str, int], *parts: bytes, quiet: float = 10.0) -> bytes:
    """All that a server answers until it ends the connection, or says nothing for `quiet` s."""
    with socket.create_connection(address, timeout=quiet) as connection:
        for part in parts:
            connection.sendall(part)
        return received(connection)


def received(connection: socket.socket) -> bytes:
    """All that comes until the end of a connection, or until its time-out."""
    data = bytearray()
    with contextlib.suppress(TimeoutError, ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return bytes(data)


def replies(data: bytes, whole: bool = True) -> list[Reply]:
    """The answers in what was received. Raises ValueError for what is none.

    whole: whether the last one must be complete.
    """
    found = []
    while data:
        head = HEAD.match(data)
        if head is None:
            if not whole and b"\r\n\r\n" not in data and b"HTTP/1.1 "[: len(data)] == data[:9]:
                break
            raise ValueError(f"no HTTP: {data[:200]!r}")
        lines = head[2].decode().lower().split("\r\n")[:-1]
        headers = dict(line.split(": ", 1) for line in lines)
        if len(headers) != len(lines):
            raise ValueError(f"a header twice: {lines}")
        status, data = int(head[1]), data[head.end() :]
        length = 0 if status == 100 else int(headers["content-length"])
        if len(data) < length:
            if whole:
                raise ValueError(f"{len(data)} of {length} bytes")
            break
        if status != 100:
            found.append(Reply(status, headers, data[:length]))
        data = data[length:]
    return found


def request(
    method: str, path: str, body: bytes = b"", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """A request as a browser sends it to the server of this machine."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if method == "POST":
        lines += [f"Content-Length: {len(body)}"]
        if "Content-Type" not in dict(headers):
            lines += ["Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join([*lines, "", ""]).encode() + body
