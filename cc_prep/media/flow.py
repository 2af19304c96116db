"""Dense optical flow between two images: OpenCV's DIS on grey pixels."""

from __future__ import annotations

import cv2
import numpy as np

FAST = cv2.DISOPTICAL_FLOW_PRESET_FAST
MEDIUM = cv2.DISOPTICAL_FLOW_PRESET_MEDIUM


def grey(image: np.ndarray) -> np.ndarray:
    """uint8 [H, W] of an image uint8 [H, W, 3] RGB."""
    return cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY)


class OpticalFlow:
    """The flow from one grey image to another, float32 [H, W, 2] (x, y in px).

    Args:
        preset: FAST or MEDIUM.
        threads: DIS divides its work by threads, and its result with it; None leaves OpenCV's
            setting. A flow depends on its two images alone.
    """

    def __init__(self, preset: int, threads: int | None = None) -> None:
        if threads is not None:
            cv2.setNumThreads(threads)
        self._dis = cv2.DISOpticalFlow.create(preset)
        self._finest_scale, self._patch_size = self._dis.getFinestScale(), self._dis.getPatchSize()

    def __call__(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """start, end: uint8 [H, W]."""
        # On small images (MEDIUM: at most 45 px) `calc` changes these two for all later images.
        self._dis.setFinestScale(self._finest_scale)
        self._dis.setPatchSize(self._patch_size)
        return self._dis.calc(start, end, None)
