"""How good a frame is, and how much moves: PSNR, SSIM, motion."""

from __future__ import annotations

import numpy as np
from skimage.metrics import structural_similarity

from cc_prep.media.flow import FAST, OpticalFlow, grey

# Two equal 8-bit images have no finite PSNR; this stands for "equal" and keeps means finite.
EQUAL_PSNR_DB = 100.0


def psnr(image: np.ndarray, truth: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of two uint8 images of the same shape, at most 100."""
    error = np.mean((image.astype(np.float32) - truth.astype(np.float32)) ** 2, dtype=np.float64)
    return EQUAL_PSNR_DB if error == 0 else float(10 * np.log10(255.0**2 / error))


def ssim(image: np.ndarray, truth: np.ndarray) -> float:
    """Structural similarity in [-1, 1] of two uint8 [H, W, 3] images, 7×7 windows."""
    return float(structural_similarity(image, truth, channel_axis=2, data_range=255))


def motion(before: np.ndarray, after: np.ndarray) -> float:
    """Mean length in px of the DIS optical flow between two uint8 [H, W, 3] images."""
    if np.array_equal(before, after):
        return 0.0
    flow = OpticalFlow(FAST, threads=1)(grey(before), grey(after))
    return float(np.linalg.norm(flow, axis=2).mean())
