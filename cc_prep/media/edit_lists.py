"""Whether an MP4 or MOV file has frames that its edit list leaves out, as trimmed videos have."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

ROUNDING = 0.002  # seconds by which the durations of a whole video may differ
MAX_HEADER_BYTES = 2**28  # bytes


def leaves_frames_out(path: str) -> bool:
    """Whether the edits of a local file's video track are shorter than the track.

    False for files of other kinds, and for damaged ones, which the decoder complains about.
    """
    try:
        header = _header(path)
        movie = dict(_boxes(header))
        scale = _scale_and_duration(movie[b"mvhd"])[0]
        return any(_is_trimmed(body, scale) for kind, body in _boxes(header) if kind == b"trak")
    except (KeyError, ValueError, struct.error, ZeroDivisionError):
        return False


def _header(path: str) -> bytes:
    """The body of the file's `moov` box, b"" without one."""
    with open(path, "rb") as file:
        end = os.fstat(file.fileno()).st_size
        start = 0
        while start + 8 <= end:
            file.seek(start)
            kind, begin, size = _box(file.read(16), end - start)
            if kind == b"moov":
                file.seek(start + begin)
                return file.read(min(size - begin, MAX_HEADER_BYTES))
            start += size
    return b""


def _box(head: bytes, rest: int) -> tuple[bytes, int, int]:
    """A box's kind, where its body begins, and its size. Raises ValueError, struct.error."""
    size, kind = struct.unpack_from(">I4s", head)
    begin = 8
    if size == 1:
        size, begin = *struct.unpack_from(">Q", head, 8), 16
    elif size == 0:  # it goes to the end
        size = rest
    if size < begin:
        raise ValueError("no box")
    return kind, begin, size


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Kind and body of each box in the body of another."""
    while len(data) >= 8:
        kind, begin, size = _box(data[:16], len(data))
        yield kind, data[begin:size]
        data = data[size:]


def _scale_and_duration(body: bytes) -> tuple[int, int]:
    """Units a second, and the duration in them, of a box `mvhd` or `mdhd`."""
    scale, duration = struct.unpack_from(*((">IQ", body, 20) if body[0] else (">II", body, 12)))
    return scale, duration


def _is_trimmed(track: bytes, movie_scale: int) -> bool:
    parts = dict(_boxes(track))
    media = dict(_boxes(parts[b"mdia"]))
    if media[b"hdlr"][8:12] != b"vide" or b"edts" not in parts:
        return False
    edits = dict(_boxes(parts[b"edts"]))[b"elst"]
    form = ">Qq4x" if edits[0] else ">Ii4x"
    size, count = struct.calcsize(form), struct.unpack_from(">I", edits, 4)[0]
    listed = list(struct.iter_unpack(form, edits[8 : 8 + size * count]))
    shown = sum(duration for duration, start in listed if start >= 0) / movie_scale
    scale, duration = _scale_and_duration(media[b"mdhd"])
    return duration / scale - shown > ROUNDING
