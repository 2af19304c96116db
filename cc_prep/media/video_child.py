"""The process that decodes videos for `video.py`: requests on standard input, answers on output.

A request is two numbers, the frame's (or COUNT) and the length of the path that follows. An answer
is a length and so many bytes: three numbers, the frame's shape, and its pixels; or the count in
decimal digits. A negative length precedes the text of an
error: what is wrong, and on a second line a remedy or nothing.
"""

from __future__ import annotations

import struct
import sys
from typing import BinaryIO

from cc_prep.media import file_kinds, video_readers

NUMBER = struct.Struct("<q")
SHAPE = struct.Struct("<3q")
COUNT = -1  # in place of a frame's number: how many there are
# What decord, and our reader by PyAV, say of a file with sound alone.
NO_STREAM = ("cannot find video stream", "no video stream")
CONVERT = "Fetch it again, or convert it, such as by ffmpeg -i VIDEO NEW.mp4"


def _serve(requests: BinaryIO, answers: BinaryIO, library: str) -> None:
    """Answers until the requests end, with one video open at a time."""
    opened: tuple[str, video_readers.Reader] | None = None
    while head := requests.read(2 * NUMBER.size):
        index, length = NUMBER.unpack(head[:8])[0], NUMBER.unpack(head[8:])[0]
        path = requests.read(length).decode("utf-8", "surrogateescape")
        if opened is None or opened[0] != path:
            opened = None
        try:
            if opened is None:
                opened = (path, video_readers.open_video(path, library))
            answer, sign = _answer(opened[1], index), 1
        except Exception as error:  # decord raises its own types and plain RuntimeError
            what, remedy = _no_video(path, error) if opened is None else _no_frame(index, error)
            answer, sign = [f"{path}: {what}\n{remedy}".encode(errors="surrogateescape")], -1
            opened = None
        answers.write(NUMBER.pack(sign * sum(map(len, answer))))
        for part in answer:
            answers.write(part)
        answers.flush()


def _no_video(path: str, error: Exception) -> tuple[str, str]:
    """Why a file cannot be opened, and a remedy.

    The libraries' own words hold places in their sources and a clock, so few of them are told.
    """
    with open(path, "rb") as file:
        known = file_kinds.what_it_is(file.read(file_kinds.HEAD))
    if known is not None:
        return known
    if any(words in str(error) for words in NO_STREAM):
        return "has no pictures, but sound alone or nothing", "Take another file"
    return "cannot be opened: no video, cut off, or of a format that is not known", CONVERT


def _no_frame(index: int, error: Exception) -> tuple[str, str]:
    """Why a frame of an open video cannot be given, and a remedy where none is obvious."""
    if isinstance(error, video_readers.NoFrame):
        return str(error), ""
    what = "its frames cannot be counted" if index == COUNT else f"frame {index} cannot be decoded"
    return f"{what}: the file is damaged", CONVERT


def _answer(reader: video_readers.Reader, index: int) -> list[bytes]:
    count = len(reader)
    if index == COUNT:
        return [str(count).encode()]
    if index >= count:
        raise video_readers.NoFrame(f"has {count} frames, and no frame {index} (from 0)")
    frame = reader[index]
    return [SHAPE.pack(*frame.shape), frame.tobytes()]


if __name__ == "__main__":
    import cv2

    cv2.setNumThreads(1)
    _serve(sys.stdin.buffer, sys.stdout.buffer, sys.argv[1])
