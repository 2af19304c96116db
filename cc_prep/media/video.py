"""Frames of videos, decoded by decord in a child process that can be killed.

decord can hang on a damaged file without reacting to an interrupt, and a crash in it takes its
process along; so it runs in a child of its own, one a calling process, started when first needed.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import select
import struct
import subprocess
import sys
import threading
from typing import BinaryIO

import numpy as np

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair

SECONDS_A_FRAME = 30.0
HEADER = struct.Struct("<q")


def read_frame(place: str, index: int) -> np.ndarray:
    """Frame `index` (from 0) of a local video file, uint8 [H, W, 3] RGB.

    Raises RejectedPair for a missing or damaged video, a frame past its end, or no answer in time.
    """
    answer = _ask(place, index)
    frame: np.ndarray = np.load(io.BytesIO(answer), allow_pickle=False)
    return frame


def count_frames(place: str) -> int:
    """How many frames a video has. Raises RejectedPair like `read_frame`."""
    return int(_ask(place, -1))


def _ask(place: str, index: int) -> bytes:
    place = storage.local_path(place)
    if storage.is_remote(place):
        raise RejectedPair(Reason.UNREADABLE_VIDEO, f"{place}: videos are read from mounted paths")
    if not storage.exists(place):
        raise RejectedPair(Reason.MISSING_IMAGE, place)
    with _LOCK:
        try:
            return _decoder().ask(place, index)
        except RejectedPair:
            raise
        except (OSError, EOFError) as error:
            _stop()
            raise RejectedPair(
                Reason.UNREADABLE_VIDEO, f"{place}, frame {index}: the decoder {error}"
            ) from None


class _Decoder:
    """The child process and the two pipes to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cc_prep.media.video"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # so that `select` sees all there is to read
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.answers: BinaryIO = self.process.stdout  # type: ignore[assignment]

    def ask(self, place: str, index: int) -> bytes:
        name = place.encode("utf-8", "surrogateescape")
        self.requests.write(HEADER.pack(index) + HEADER.pack(len(name)) + name)
        self.requests.flush()
        size = HEADER.unpack(self._receive(HEADER.size))[0]
        if size < 0:
            message = self._receive(-size).decode(errors="replace")
            raise RejectedPair(Reason.UNREADABLE_VIDEO, message)
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            ready, _, _ = select.select([self.answers], [], [], SECONDS_A_FRAME)
            if not ready:
                raise EOFError(f"gave no answer in {SECONDS_A_FRAME:.0f} s")
            piece = self.answers.read(size - len(data))
            if not piece:
                raise EOFError("died")
            data += piece
        return bytes(data)


_LOCK = threading.Lock()
_CHILD: list[_Decoder] = []


def _decoder() -> _Decoder:
    if not _CHILD:
        _CHILD.append(_Decoder())
    return _CHILD[0]


def _stop() -> None:
    while _CHILD:
        decoder = _CHILD.pop()
        decoder.process.kill()
        decoder.process.wait()
        for pipe in (decoder.requests, decoder.answers):
            with contextlib.suppress(OSError):  # what was not yet written to a dead child
                pipe.close()


atexit.register(_stop)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """The child's side: one video open at a time; a negative length precedes an error's text."""
    import decord

    decord.logging.set_level(decord.logging.QUIET)
    opened: tuple[str, decord.VideoReader] | None = None
    while head := requests.read(2 * HEADER.size):
        index, length = HEADER.unpack(head[:8])[0], HEADER.unpack(head[8:])[0]
        place = requests.read(length).decode("utf-8", "surrogateescape")
        try:
            if opened is None or opened[0] != place:
                opened = (place, decord.VideoReader(place, num_threads=1))
            answer, sign = _answer(opened[1], index), 1
        except Exception as error:  # decord raises its own types and plain RuntimeError
            opened = None
            lines = str(error).strip().splitlines()
            answer, sign = f"{place}: {lines[-1] if lines else 'cannot be decoded'}".encode(), -1
        answers.write(HEADER.pack(sign * len(answer)) + answer)
        answers.flush()


def _answer(reader: object, index: int) -> bytes:
    count = len(reader)  # type: ignore[arg-type]
    if index < 0:
        return str(count).encode()
    if index >= count:
        raise IndexError(f"frame {index} asked for, {count} there")
    file = io.BytesIO()
    np.save(file, reader[index].asnumpy(), allow_pickle=False)  # type: ignore[index]
    return file.getvalue()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
