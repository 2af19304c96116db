"""From the probability of a caption to the chance that it is right.

A captioner's own probabilities are too high or too low. Two numbers fitted on held-out pairs mend
that (Platt scaling). A pair that is unlike all held-out ones gets less: there nothing was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cc_prep.errors import UserError

STEPS = 100
# Of slope and offset: keeps them finite where all held-out captions are right.
PRIOR = 1e-2
BINS = 10
FAMILIAR = 0.99  # of the held-out pairs, which are not strange


@dataclass(frozen=True)
class Calibration:
    """The chance is σ(slope · s + offset) of the sum s of a caption's log-probabilities.

    strangest: how unlike the training data one in a hundred held-out pairs is at least; None where
    the captioner does not say. A pair of more, d, has its chance times (strangest / d)².
    """

    slope: float
    offset: float
    strangest: float | None = None

    def confidence(self, score: float, strangeness: float | None = None) -> float:
        """The chance that a caption is right, 0 to 1."""
        chance = float(_sigmoid(np.array(self.slope * score + self.offset)))
        if self.strangest is None or strangeness is None or strangeness <= self.strangest:
            return chance
        return chance * (self.strangest / strangeness) ** 2

    @classmethod
    def of(cls, value: Any, place: object) -> Calibration:
        """From a run's settings. Raises UserError, which names `place`."""
        try:
            strangest = value["strangest"]
            return cls(
                float(value["slope"]),
                float(value["offset"]),
                None if strangest is None else float(strangest),
            )
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{place}: its calibration is damaged", "Pack it anew") from None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a run's settings."""
        return asdict(self)


def fit(
    scores: Sequence[float], right: Sequence[bool], strangeness: Sequence[float] = ()
) -> Calibration:
    """The calibration of held-out captions, by Newton's method.

    scores: sums of log-probabilities. right: whether each caption is.
    """
    x = np.stack((np.asarray(scores, float), np.ones(len(scores))), axis=1)
    y = np.asarray(right, float)
    weights = np.zeros(2)
    for _ in range(STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (p - y) + PRIOR * weights
        hessian = (x * (p * (1 - p))[:, None]).T @ x + PRIOR * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        weights -= np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-9:
            break
    slope, offset = (float(weight) for weight in weights)
    strangest = float(np.quantile(strangeness, FAMILIAR)) if len(strangeness) else None
    return Calibration(slope, offset, strangest)


def calibration_error(confidences: Sequence[float], right: Sequence[bool]) -> float:
    """The mean gap between confidence and share of right captions, over ten equal bins, 0 to 1.

    Source: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017.
    """
    chances, truth = np.asarray(confidences, float), np.asarray(right, float)
    bins = np.minimum((chances * BINS).astype(int), BINS - 1)
    gaps = [
        abs(chances[bins == one].mean() - truth[bins == one].mean()) * (bins == one).mean()
        for one in range(BINS)
        if (bins == one).any()
    ]
    return float(sum(gaps))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))
