"""Where a captioner looked, as heat over both images, for the page of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np

from cc_prep.errors import UserError
from cc_prep.media import images
from cc_train import captioner as captioners
from cc_train.captioner import Attention
from cc_train.data import shard_index
from cc_train.evaluation.predict import predict

HEAT = np.array([255, 40, 0], np.float32)  # RGB
OPACITY = 0.7
WORD_SIDE = 72  # px of the picture of a word


@dataclass(frozen=True)
class Heat:
    """Encoded JPEG images: before and after with the mean over words; of each word, after alone."""

    before_after: tuple[bytes, bytes]
    words: tuple[tuple[str, bytes], ...]


def of_samples(run: str, entries: Sequence[shard_index.Entry]) -> dict[str, Attention]:
    """What a run's captioner looked at, by key; samples that it cannot read are left out.

    Raises UserError for a run that is no captioner.
    """
    captioner, looked = captioners.load(run), {}
    for entry in entries:
        try:
            [(key, caption)] = predict(captioner, [entry])
        except UserError:  # the page shows it without heat
            continue
        if caption.attention is not None:
            looked[key] = caption.attention
    return looked


def heat(pictures: Mapping[int, bytes], last: int, attention: Attention) -> Heat | None:
    """Heat over the encoded images of the frames 0 and `last`; None where one is not there."""
    ends = [images.decode_stored(pictures.get(frame, b"")) for frame in (0, last)]
    before, after = ends
    if before is None or after is None or not attention.words:
        return None
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
