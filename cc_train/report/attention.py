"""A captioner's attention as heat maps over both images, for the page of a run."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media import images
from cc_train.captioner import Attention
from cc_train.report import pictures
from cc_train.report.legend import WORD_SIDE

HEAT = np.array([255, 40, 0], np.float32)  # RGB
OPACITY = 0.7


@dataclass(frozen=True)
class Heat:
    """Encoded JPEG images: before and after with the mean over words; of each word, after alone."""

    before_after: tuple[bytes, bytes]
    words: tuple[tuple[str, bytes], ...]


def heat(sample: TrainingSample, attention: Attention | None) -> Heat | None:
    """Heat over the images of a sample; None where one of them or the attention is not there."""
    ends = pictures.ends(sample)
    if ends is None or attention is None or not attention.words:
        return None
    before, after = ends
    mean = attention.maps.mean(0)
    side = max(after.shape[:2])
    small = cv2.resize(after, None, fx=WORD_SIDE / side, fy=WORD_SIDE / side)
    return Heat(
        (over(before, mean), over(after, mean)),
        tuple(
            (word, over(small, one))
            for word, one in zip(attention.words, attention.maps, strict=True)
        ),
    )


def over(image: np.ndarray, weights: np.ndarray) -> bytes:
    """An image uint8 [H, W, 3] under heat [h, w], as JPEG; the hottest place is the same in all."""
    height, width = image.shape[:2]
    hottest = max(float(weights.max()), 1e-12)
    smooth = cv2.resize(
        (weights / hottest).astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR
    )
    share = OPACITY * smooth.clip(0, 1)[..., None]
    blended = image * (1 - share) + HEAT * share
    return images.encode_image(blended.round().astype(np.uint8), "jpg", 85)
