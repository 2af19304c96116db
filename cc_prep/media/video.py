"""Frames of videos, decoded in a child process that can be killed.

decord can hang on a damaged file without reacting to an interrupt, and a crash in a decoder takes
its process along; so it runs in a child of its own (`video_child.py`), one a calling process,
started when first needed. A fork of that process starts its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import subprocess
import sys
import threading
from typing import BinaryIO

import numpy as np

from cc_prep import storage
from cc_prep.errors import FileRefused, Reason, RejectedPair
from cc_prep.media import video_readers
from cc_prep.media.video_child import COUNT, NUMBER, SHAPE

ENDINGS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")  # of files
SECONDS_A_FRAME = 30.0


def read_frame(path: str, index: int) -> np.ndarray:
    """Frame `index` (from 0) of a local video file, uint8 [H, W, 3] RGB.

    Raises:
        RejectedPair: For a missing or damaged video, a frame past its end, or no answer in time.
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
    try:
        storage.open_read(path).close()  # the libraries would wait for a pipe's other end
    except FileNotFoundError:
        raise RejectedPair(Reason.MISSING_IMAGE, path) from None
    except FileRefused as error:
        raise RejectedPair(Reason.UNREADABLE_VIDEO, error.what) from None
    with _OWN.lock:
        try:
            return _OWN.started().ask(path, index)
        except RejectedPair:
            raise
        except (OSError, EOFError, ValueError) as error:
            stop_decoder()
            raise RejectedPair(
                Reason.UNREADABLE_VIDEO, f"{path}, frame {index}: the decoder {error}"
            ) from None
        except BaseException:  # such as Ctrl-C: its answer must not be taken for the next one
            stop_decoder()
            raise


class _Decoder:
    """The child process and the two pipes to it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cc_prep.media.video_child", video_readers.library()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # so that the selector sees all there is to read
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
            what, _, remedy = self._receive(-size).decode(errors="replace").rpartition("\n")
            raise RejectedPair(Reason.UNREADABLE_VIDEO, what, remedy)
        return self._receive(size)

    def _receive(self, size: int) -> bytearray:
        data, received = bytearray(size), 0
        with selectors.DefaultSelector() as selector:  # `select` takes no descriptor above 1023
            selector.register(self.answers, selectors.EVENT_READ)
            while received < size:
                if not selector.select(SECONDS_A_FRAME):
                    raise EOFError(f"gave no answer in {SECONDS_A_FRAME:.0f} s")
                rest = memoryview(data)[received:]
                count = self.answers.readinto(rest)  # type: ignore[attr-defined]
                if not count:
                    raise EOFError("died")
                received += count
        return data


class _Own:
    """The decoder of this process, where one was started. lock: held for an answer."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """After a fork: the decoder is the parent's, and the lock may have been held there."""
        self.lock = threading.Lock()
        self.decoder: _Decoder | None = None

    def started(self) -> _Decoder:
        if self.decoder is None:
            self.decoder = _Decoder()
            atexit.register(stop_decoder)
        return self.decoder


_OWN = _Own()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_OWN.forget)


def stop_decoder() -> None:
    """Ends the decoding process, where there is one; the next frame to be read starts another."""
    atexit.unregister(stop_decoder)
    decoder, _OWN.decoder = _OWN.decoder, None
    if decoder is None:
        return
    decoder.process.kill()
    decoder.process.wait()
    for pipe in (decoder.requests, decoder.answers):
        with contextlib.suppress(OSError):  # what was not yet written to a dead child
            pipe.close()
