"""What a user is told where a captioner's sentence is almost certainly wrong, or two images equal.

The command, the page and `cc_train.Captioner` tell it, and `Caption.raw` keeps the sentence itself,
which `cc-train evaluate` scores. `photos-mini` says it by itself, with reasons of its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cc_train.calibration import Calibration
from cc_train.captioner import Caption

MIN_CONFIDENCE = 0.05
# Of registered images. Where less is compared, a change that lies anywhere is missed in more than
# one of four pairs. Cameras that moved as in `benchmarks/registration.py` leave 78 % or more.
MIN_COMPARED = 0.75
EQUAL = "the two images are equal"
NOT_SURE = "not sure: "
UNLIKE = "these images are unlike those that the captioner was trained on"
UNLIKELY = f"its sentence is right with a chance of less than {100 * MIN_CONFIDENCE:.0f} %"


def told(
    caption: Caption,
    are_equal: bool,
    calibration: Calibration | None = None,
    compared: float | None = None,
) -> Caption:
    """A captioner's caption as a user is told it.

    Args:
        are_equal: No pixel of the two images differs.
        calibration: The captioner's, which knows which images are unlike those of the training.
        compared: As that of `Caption`.
    """
    caption = replace(caption, compared=compared)
    if compared is not None and compared < MIN_COMPARED:
        # A confidence is that of a sentence about whole images.
        return replace(unsure(caption, missing(compared)), confidence=None)
    if caption.text == EQUAL:
        return caption
    if are_equal:
        return equal(caption)
    is_told = caption.raw is not None
    if is_told or caption.confidence is None or caption.confidence >= MIN_CONFIDENCE:
        return caption
    threshold = None if calibration is None else calibration.ood_threshold
    is_unlike = (caption.ood_score or 0.0) > (np.inf if threshold is None else threshold)
    return unsure(caption, UNLIKE if is_unlike else UNLIKELY)


def missing(compared: float) -> str:
    """How much of registered images is not compared."""
    share = max(1, round(100 * (1 - compared)))
    what = f"{share} % of the image before has no counterpart in the one after"
    return f"{what}, and is not compared"


def equal(caption: Caption) -> Caption:
    """A caption that says that the images are equal; where something changed is nowhere."""
    return replace(
        caption,
        text=EQUAL,
        raw=caption.text if caption.raw is None else caption.raw,
        confidence=None if caption.confidence is None else 1.0,
        mask=None if caption.mask is None else np.zeros_like(caption.mask),
        changes=None if caption.changes is None else (),
        attention=None,
    )


def unsure(caption: Caption, why: str) -> Caption:
    """A caption that says that the captioner is not sure, and why."""
    return replace(
        caption, text=NOT_SURE + why, raw=caption.text if caption.raw is None else caption.raw
    )
