"""The two libraries that decode videos, each as a reader of frames by number.

decord where it has a wheel (Linux on x86-64), PyAV elsewhere. Both give the same bytes, whatever
was read before: `tests/unit/cc_prep/media/test_video_readers.py`.
"""

from __future__ import annotations

import bisect
import importlib.util
from collections.abc import Iterable
from typing import Any, Protocol

import cv2
import numpy as np

from cc_prep.media import edit_lists, yuv

# The first bytes of an MPEG program stream, in which both libraries land anywhere when they seek,
# and of an AVI file, which does not say when its frames are shown.
PROGRAM_STREAM, RIFF = b"\x00\x00\x01\xba", b"RIFF"


class NoFrame(Exception):
    """A frame past the end of a video."""


class Reader(Protocol):
    """A video that is open: its number of frames, and frame i as uint8 [H, W, 3] RGB."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> np.ndarray: ...


def library() -> str:
    """The library that reads videos on this machine: `decord` or `av`."""
    return "decord" if importlib.util.find_spec("decord") else "av"


def open_video(path: str, name: str) -> Reader:
    """The video at a local path, by the library of that name. Raises what the library raises."""
    return Decord(path) if name == "decord" else PyAV(path)


def exact_keyframes(path: str) -> list[int]:
    """Keyframes, by number, from which frames can be counted on; 0 is always one of them.

    decord numbers keyframes in the order in which they are stored, and frames in the order in which
    they are shown. Where a group of pictures is open, the two differ, and decord's own `[i]` gives
    another frame than the i-th. Only keyframes of which both numbers agree are used.
    """
    packets = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_FORMAT, -1])
    times: list[float] = []
    keys: list[int] = []
    while packets.grab():
        if packets.get(cv2.CAP_PROP_LRF_HAS_KEY_FRAME):
            keys.append(len(times))
        times.append(packets.get(cv2.CAP_PROP_PTS))
    packets.release()
    if len(set(times)) < len(times):  # rounded by OpenCV: the order cannot be told
        return [0]
    shown = sorted(times)
    agreeing = [number for number in keys if shown[number] == times[number]]
    return _trusted(path, agreeing, len(times))


def _trusted(path: str, keyframes: Iterable[int], frames: int) -> list[int]:
    """Keyframes that a seek reaches exactly, ascending, and always frame 0."""
    with open(path, "rb") as file:
        head = file.read(len(RIFF))
    numbers = sorted({0, *keyframes})
    exact = head not in (PROGRAM_STREAM, RIFF) or (head == RIFF and len(numbers) == frames)
    return numbers if exact else [0]


class Decord:
    """Reads with decord: from an exact keyframe on, frame after frame.

    decord counts frames that an edit list leaves out, repeats the last one in their stead, and
    seeks as if they were shown. Such a video is read from its start, and its frames are counted.
    """

    def __init__(self, path: str) -> None:
        import decord

        decord.logging.set_level(decord.logging.QUIET)
        self.reader = decord.VideoReader(path, num_threads=1)
        self.path = path
        self._keyframes: list[int] | None = None
        self._count = len(self.reader)
        if edit_lists.leaves_frames_out(path):
            self._keyframes, self._count = [0], _count_shown(path)
        self._next = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> np.ndarray:
        if self._keyframes is None:
            self._keyframes = exact_keyframes(self.path)
        keyframe = self._keyframes[bisect.bisect_right(self._keyframes, index) - 1]
        if not keyframe <= self._next <= index:
            self.reader.seek(keyframe)
            self._next = keyframe
        while self._next <= index:
            frame = self.reader.next()
            self._next += 1
        return _without_padding(frame.asnumpy())


def _count_shown(path: str) -> int:
    """How many frames come out when all are decoded."""
    video, count = cv2.VideoCapture(path, cv2.CAP_FFMPEG), 0
    while video.grab():
        count += 1
    video.release()
    return count


def _without_padding(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 3] of what decord gives of narrow frames: rows that end in padding, which it
    takes for further channels.
    """
    height, width, channels = pixels.shape
    if channels == 3:
        return pixels
    return pixels.reshape(height, -1)[:, : 3 * width].reshape(height, width, 3)


class PyAV:
    """Reads with PyAV: from a keyframe on, by the times of frames."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._open()
        packets = [
            packet  # but those that an edit list leaves out
            for packet in self.container.demux(self.stream)
            if packet.size and not packet.is_discard
        ]
        times = [packet.dts if packet.pts is None else packet.pts for packet in packets]
        self.times = sorted(times)
        self.numbers = {time: number for number, time in enumerate(self.times)}
        keys = {
            self.numbers[time]
            for time, packet in zip(times, packets, strict=True)
            if packet.is_keyframe
        }
        self.keyframes = _trusted(path, keys, len(times))
        self._next = len(self.times)  # what was demuxed is behind

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> np.ndarray:
        keyframe = self.keyframes[bisect.bisect_right(self.keyframes, index) - 1]
        if not keyframe <= self._next <= index:
            self._go_to(keyframe)
        for frame in self.frames:
            number = self._next
            if self._by_time:
                number = self.numbers[frame.dts if frame.pts is None else frame.pts]
            self._next = number + 1
            if number == index:
                return _upright(frame)
            if number > index:
                break
        raise NoFrame(f"frame {index} does not come out, as if it were cut out")

    def _open(self) -> None:
        import av

        self.container = av.open(self.path)
        if not self.container.streams.video:
            raise ValueError("no video stream")
        self.stream = self.container.streams.video[0]
        self.stream.codec_context.thread_count = 1

    def _go_to(self, keyframe: int) -> None:
        self.container.close()
        self._open()
        if keyframe:
            self.container.seek(self.times[keyframe], stream=self.stream)
        self.frames = self.container.decode(self.stream)
        self._next = keyframe
        # After a seek, frames that come before the keyframe may come first.
        self._by_time = keyframe > 0


def _upright(frame: Any) -> np.ndarray:
    """uint8 [H, W, 3] of an `av.VideoFrame`, turned as its file says it is shown, as decord does.

    A file may say so of a camera that was held upright. Only quarter turns count.
    """
    pixels = yuv.to_rgb(frame)
    turns, rest = divmod(frame.rotation, 90)  # degrees anticlockwise
    return pixels if rest else np.ascontiguousarray(np.rot90(pixels, turns % 4))
