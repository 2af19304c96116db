"""Pictures of pairs: the two images of a sample, and what a run's captioner says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media import images
from cc_train import loading
from cc_train.captioner import Caption
from cc_train.data.shard_index import Entry
from cc_train.evaluation.predict import predict

CODECS = {".png": "png", ".jpg": "jpg", ".jpeg": "jpg", ".webp": "webp"}


@dataclass(frozen=True)
class Captioned:
    """Samples with their captions, by key; and why others have none, one reason each."""

    samples: dict[str, tuple[TrainingSample, Caption]]
    reasons: tuple[str, ...]


def captioned(run: str, entries: Sequence[Entry]) -> Captioned:
    """What the captioner of a run says of samples, each by itself: one that it cannot read keeps
    none of the others from being captioned.

    Raises:
        UserError: For a run that is no captioner.
    """
    captioner = loading.load(run)
    samples, reasons = {}, []
    for entry in entries:
        try:
            [(sample, caption)] = predict(captioner, [entry])
        except UserError as error:
            reasons.append(str(error))
        else:
            samples[entry.key] = sample, caption
    return Captioned(samples, tuple(reasons))


def ends(sample: TrainingSample) -> tuple[np.ndarray, np.ndarray] | None:
    """Before and after, uint8 [H, W, 3] RGB each; None where the sample does not hold both."""
    stored = [sample.images.get(frame, b"") for frame in (0, len(sample.tokens) - 1)]
    before, after = map(images.decode_stored, stored)
    return None if before is None or after is None else (before, after)
