"""Frames as PyAV decodes them → RGB, with the arithmetic of FFmpeg on x86-64 processors.

FFmpeg converts 8-bit YUV with 16-bit integers, and with others on other processors. Done here the
same way everywhere, decoded videos have the same bytes on all of them, and those that decord gives.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cv2
import numpy as np

# 65536 times what V adds to red, U to blue, and U and V take from green, by FFmpeg's number of the
# colour space: BT.709, FCC, SMPTE 240M, BT.2020. All other numbers mean BT.601.
BT_601 = (104597, 132201, 25675, 53279)
SPACES = {
    1: (117489, 138438, 13975, 34925),
    4: (104448, 132798, 24759, 53109),
    7: (117579, 136230, 16907, 35559),
    9: (110013, 140363, 12277, 42626),
    10: (110013, 140363, 12277, 42626),
}
# By format: whether chroma has half as many rows. Columns are halved in both.
FORMATS = {"yuv420p": True, "yuvj420p": True, "yuv422p": False, "yuvj422p": False}
FULL_RANGE = 2


def to_rgb(frame: Any) -> np.ndarray:
    """uint8 [H, W, 3] RGB of an `av.VideoFrame`.

    Frames of other formats than FORMATS, and of odd sizes, are converted by FFmpeg itself, whose
    rounding there differs with version and processor.
    """
    halved = FORMATS.get(frame.format.name)
    if halved is None or frame.width % 2 or (halved and frame.height % 2):
        converted: np.ndarray = frame.to_ndarray(format="rgb24")
        return converted
    full = frame.color_range == FULL_RANGE or frame.format.name.startswith("yuvj")
    luma, red, blue, green_u, green_v = _tables(int(frame.colorspace), full)
    y, u, v = (_plane(plane) for plane in frame.planes)
    base, size = cv2.LUT(y, luma), (frame.width, frame.height)
    chroma = (cv2.LUT(v, red), cv2.LUT(u, green_u) + cv2.LUT(v, green_v), cv2.LUT(u, blue))
    return cv2.merge(
        [
            cv2.add(base, cv2.resize(part, size, interpolation=cv2.INTER_NEAREST), dtype=cv2.CV_8U)
            for part in chroma
        ]
    )


def _plane(plane: Any) -> np.ndarray:
    rows = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
    return np.ascontiguousarray(rows[:, : plane.width])


@cache
def _tables(space: int, full: bool) -> tuple[np.ndarray, ...]:
    """What each value adds, int16 [256]: Y to all, V to red, U to blue, U and V to green.

    FFmpeg shifts a value by 3, multiplies it by a factor of 13 bits and takes the upper 16 bits.
    """
    red, blue, green_u, green_v = SPACES.get(space, BT_601)
    factors, luma, black = [red, blue, -green_u, -green_v], 1 << 16, 0
    if full:
        factors = [int(factor * 224 / 255) for factor in factors]
    else:
        luma, black = luma * 255 // 219, 16
    values = np.arange(256, dtype=np.int64)
    shifted = [values - black] + [values - 128] * 4
    return tuple(
        (((value << 3) * (((factor << 13) + (1 << 15)) >> 16)) >> 16).astype(np.int16)
        for value, factor in zip(shifted, [luma, *factors], strict=True)
    )
