"""The difference of each pixel of a pair, in levels of 8-bit Lab, with and without tolerance."""

from __future__ import annotations

import cv2
import numpy as np

# px, before a comparison that tolerates shifts: the range of the neighbourhood smooths already.
TOLERANT_BLUR = 0.7


def plain(before: np.ndarray, after: np.ndarray, blur: float) -> np.ndarray:
    """The largest difference of the three Lab channels, float32 [H, W] in 0 … 255.

    Args:
        before, after: uint8 [H, W, 3] RGB.
        blur: Sigma in px of a Gaussian over both images; 0 for none. Lab, so that another hue of
            equal brightness counts.
    """
    one, other = (_lab(image, blur).astype(np.float32) for image in (before, after))
    largest: np.ndarray = np.abs(one - other).max(axis=2)
    return largest


def tolerant(before: np.ndarray, after: np.ndarray, radius: int) -> np.ndarray:
    """A difference that forgives shifts of up to `radius` px, float32 [H, W] in 0 … 255.

    It is the distance of a value from the range of the other image within the radius: the maximum
    over both directions and over the Lab channels. So a small move of the camera marks no edges.
    The rim of a real change is lost as well.
    """
    one, other = (_lab(image, TOLERANT_BLUR) for image in (before, after))
    disc = disc_of(radius)
    ways = []
    for values, others in ((one, other), (other, one)):
        highest = cv2.dilate(others, disc).astype(np.float32)
        lowest = cv2.erode(others, disc).astype(np.float32)
        level = values.astype(np.float32)
        outside = np.maximum(level - highest, lowest - level)
        ways.append(np.maximum(outside, 0).max(axis=2))
    farther: np.ndarray = np.maximum(*ways)
    return farther


def disc_of(radius: int) -> np.ndarray:
    """The pixels within `radius` px of the middle one, as a kernel for OpenCV's morphology."""
    return cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * radius + 1, 2 * radius + 1))


def _lab(image: np.ndarray, blur: float) -> np.ndarray:
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    return cv2.GaussianBlur(lab, (0, 0), blur) if blur else lab
