"""Frames of videos, decoded in a child process that can be killed.

decord can hang on a damaged file without reacting to an interrupt, and a crash in a decoder takes
its process along; so it runs in a child of its own (`video_child.py`), one a calling process,
started when first needed.
"""

from __future__ import annotations

import atexit
import contextlib
import select
import subprocess
import sys
import threading
from typing import BinaryIO

import numpy as np

from cc_prep import storage
from cc_prep.errors import Reason, RejectedPair
from cc_prep.media import video_readers
from cc_prep.media.video_child import COUNT, NUMBER, SHAPE

ENDINGS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")  # of files
SECONDS_A_FRAME = 30.0


def read_frame(path: str, index: int) -> np.ndarray:
    """Frame `index` (from 0) of a local video file, uint8 [H, W, 3] RGB.

    Raises RejectedPair for a missing or damaged video, a frame past its end, or no answer in time.
    """
    answer = _ask(path, index)
    shape = SHAPE.unpack_from(answer)
    return np.frombuffer(answer, np.uint8, offset=SHAPE.size).reshape(shape)


def count_frames(path: str) -> int:
    """How many frames a video has. Raises RejectedPair like `read_frame`."""
    return int(_ask(path, COUNT))


def _ask(path: str, index: int) -> bytearray:
    path = storage.local_path(path)
    if storage.is_remote(path):
        raise RejectedPair(Reason.UNREADABLE_VIDEO, f"{path}: videos are read from mounted paths")
    if not storage.exists(path):
        raise RejectedPair(Reason.MISSING_IMAGE, path)
    with _LOCK:
        try:
            return _decoder().ask(path, index)
        except RejectedPair:
            raise
        except (OSError, EOFError) as error:
            stop_decoder()
            raise RejectedPair(
                Reason.UNREADABLE_VIDEO, f"{path}, frame {index}: the decoder {error}"
            ) from None


class _Decoder:
    """The child process and the two pipes to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cc_prep.media.video_child", video_readers.library()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # so that `select` sees all there is to read
        )
        assert self.process.stdin
        assert self.process.stdout
        self.requests: BinaryIO = self.process.stdin  # type: ignore[assignment]
        self.answers: BinaryIO = self.process.stdout  # type: ignore[assignment]

    def ask(self, path: str, index: int) -> bytearray:
        name = path.encode("utf-8", "surrogateescape")
        self.requests.write(NUMBER.pack(index) + NUMBER.pack(len(name)) + name)
        self.requests.flush()
        size = NUMBER.unpack(self._receive(NUMBER.size))[0]
        if size < 0:
            message = self._receive(-size).decode(errors="replace")
            raise RejectedPair(Reason.UNREADABLE_VIDEO, message)
        return self._receive(size)

    def _receive(self, size: int) -> bytearray:
        data, received = bytearray(size), 0
        while received < size:
            ready, _, _ = select.select([self.answers], [], [], SECONDS_A_FRAME)
            if not ready:
                raise EOFError(f"gave no answer in {SECONDS_A_FRAME:.0f} s")
            count = self.answers.readinto(memoryview(data)[received:])  # type: ignore[attr-defined]
            if not count:
                raise EOFError("died")
            received += count
        return data


_LOCK = threading.Lock()
_CHILD: list[_Decoder] = []


def _decoder() -> _Decoder:
    if not _CHILD:
        _CHILD.append(_Decoder())
    return _CHILD[0]


def stop_decoder() -> None:
    """Ends the decoding process, where there is one; the next frame to be read starts another."""
    while _CHILD:
        decoder = _CHILD.pop()
        decoder.process.kill()
        decoder.process.wait()
        for pipe in (decoder.requests, decoder.answers):
            with contextlib.suppress(OSError):  # what was not yet written to a dead child
                pipe.close()


atexit.register(stop_decoder)
