"""The process that decodes videos for `video.py`: requests on standard input, answers on output.

A request is two numbers, the frame's (or COUNT) and the length of the path that follows. An answer
is a length and so many bytes: three numbers, the frame's shape, and its pixels; or the count in
decimal digits. A negative length precedes an error's text.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

from cc_prep.media import video_readers

NUMBER = struct.Struct("<q")
SHAPE = struct.Struct("<3q")
COUNT = -1  # in place of a frame's number: how many there are


def _serve(requests: BinaryIO, answers: BinaryIO, library: str) -> None:
    """Answers until the requests end, with one video open at a time."""
    opened: tuple[str, video_readers.Reader] | None = None
    while head := requests.read(2 * NUMBER.size):
        index, length = NUMBER.unpack(head[:8])[0], NUMBER.unpack(head[8:])[0]
        path = requests.read(length).decode("utf-8", "surrogateescape")
        try:
            if opened is None or opened[0] != path:
                opened = (path, video_readers.open_video(path, library))
            answer, sign = _answer(opened[1], index), 1
        except Exception as error:  # decord raises its own types and plain RuntimeError
            opened = None
            lines = str(error).strip().splitlines()
            reason = lines[-1] if lines else "cannot be decoded"
            answer, sign = [f"{path}: {reason}".encode()], -1
        answers.write(NUMBER.pack(sign * sum(map(len, answer))))
        for part in answer:
            answers.write(part)
        answers.flush()


def _answer(reader: video_readers.Reader, index: int) -> list[bytes]:
    count = len(reader)
    if index == COUNT:
        return [str(count).encode()]
    if index >= count:
        raise IndexError(f"frame {index} asked for, {count} there")
    frame = reader[index]
    return [SHAPE.pack(*frame.shape), frame.tobytes()]


if __name__ == "__main__":
    import cv2

    cv2.setNumThreads(1)
    _serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1])
