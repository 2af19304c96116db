"""Frames of the three real videos of `cc-prep videos`."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np

from cc_prep.datasets import sample_videos


def of_videos(folder: str, size: tuple[int, int]) -> Iterator[list[np.ndarray]]:
    """Each video's frames, uint8 [H, W, 3] RGB of size (W, H); the files are put into `folder`."""
    for video in sample_videos.fetch(folder):
        frames = []
        reader = cv2.VideoCapture(str(video))
        while (read := reader.read())[0]:
            small = cv2.resize(read[1], size, interpolation=cv2.INTER_AREA)
            frames.append(np.ascontiguousarray(small[..., ::-1]))
        yield frames
