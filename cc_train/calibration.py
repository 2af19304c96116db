"""Calibration: turns the probability of a caption into the chance that it is right.

A captioner's own probabilities are too high or too low. Two numbers that are fitted on held-out
pairs correct that (Platt scaling). A pair that is unlike all held-out ones gets a lower chance,
since nothing was measured there. The captions are greedy ones: the best of several beams has a
larger probability, for which nothing was fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cc_prep.errors import UserError

# Of slope and offset: keeps them finite where all held-out captions are right.
PRIOR = 1e-2
BINS = 10
COVERAGES = (0.8, 0.9)  # of the captions, those of the highest confidence
FAMILIAR = 0.99  # of the held-out pairs, which are not strange


@dataclass(frozen=True)
class Calibration:
    """The chance is σ(slope · s + offset) of the sum s of a caption's log-probabilities.

    Attributes:
        ood_threshold: How unlike the training data one in a hundred held-out pairs is at least;
            None where the captioner does not say. A pair of more, d, has its chance times
            (ood_threshold / d)².
        right: The share of right captions among the held-out ones, 0 to 1; None where it is not
            known. A confidence that is always this one is what the calibration has to beat.
    """

    slope: float
    offset: float
    ood_threshold: float | None = None
    right: float | None = None

    def confidence(self, score: float, ood_score: float | None = None) -> float:
        """The chance that a caption is right, 0 to 1."""
        from scipy.special import expit

        chance = float(expit(self.slope * score + self.offset))
        if self.ood_threshold is None or ood_score is None or ood_score <= self.ood_threshold:
            return chance
        return chance * (self.ood_threshold / ood_score) ** 2

    @classmethod
    def of(cls, value: Any, path: object) -> Calibration:
        """The calibration in a run's settings. Raises UserError, which names `path`."""
        try:
            optional = (value["ood_threshold"], value.get("right"))
            return cls(
                float(value["slope"]),
                float(value["offset"]),
                *(None if one is None else float(one) for one in optional),
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise UserError(f"{path}: its calibration is damaged", "Export it again") from None

    def to_json(self) -> dict[str, Any]:
        """The calibration as a run's settings hold it."""
        return asdict(self)


def fit(
    scores: Sequence[float], right: Sequence[bool], ood_score: Sequence[float] = ()
) -> Calibration:
    """The calibration of held-out captions, by the largest likelihood.

    Args:
        scores: Sums of log-probabilities.
        right: Whether each caption is.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    x, y = np.asarray(scores, float), np.asarray(right, float)
    # Standardised, so that slope and offset hardly depend on each other.
    mean, deviation = x.mean(), x.std() or 1.0
    inputs = np.stack(((x - mean) / deviation, np.ones(len(x))), axis=1)

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = inputs @ weights
        value = np.logaddexp(0, logits).sum() - y @ logits + PRIOR / 2 * weights @ weights
        return float(value), inputs.T @ (expit(logits) - y) + PRIOR * weights

    weights = minimize(loss, np.zeros(2), jac=True, method="L-BFGS-B").x
    slope = float(weights[0] / deviation)
    offset = float(weights[1] - slope * mean)
    ood_threshold = float(np.quantile(ood_score, FAMILIAR)) if len(ood_score) else None
    return Calibration(slope, offset, ood_threshold, float(y.mean()))


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


@dataclass(frozen=True)
class Quality:
    """How well confidences tell right captions from wrong ones.

    Attributes:
        error: See `calibration_error`, 0 to 1.
        brier: The mean squared difference between confidence and truth, 0 to 1.
        auroc: The chance that a right caption has a higher confidence than a wrong one; None where
            all captions are right, or all wrong.
        risk: By coverage, the share of wrong captions among those of the highest confidence, 0 to
            1; of captions with equal confidences at the limit, the part that still fits is drawn.
    """

    error: float
    brier: float
    auroc: float | None
    risk: dict[float, float]


def quality(confidences: Sequence[float], right: Sequence[bool]) -> Quality:
    """What the confidences of some captions, 0 to 1, are worth, given which of them are right.

    Sources: Brier, Monthly Weather Review, 1950; Geifman and El-Yaniv, "Selective Classification
    for Deep Neural Networks", NeurIPS 2017 (risk and coverage).
    """
    from scipy.stats import rankdata

    chances, truth = np.asarray(confidences, float), np.asarray(right, bool)
    count = int(truth.sum())
    above = rankdata(chances)[truth].sum() - count * (count + 1) / 2  # right ones above wrong ones
    pairs = count * (len(truth) - count)
    return Quality(
        calibration_error(confidences, right),
        float(((chances - truth) ** 2).mean()),
        float(above / pairs) if pairs else None,
        {coverage: _risk(chances, ~truth, coverage) for coverage in COVERAGES},
    )


def _risk(chances: np.ndarray, wrong: np.ndarray, coverage: float) -> float:
    """The expected share of wrong captions among the `coverage` of all with the highest chances."""
    _, groups = np.unique(-chances, return_inverse=True)
    sizes = np.bincount(groups)
    kept = coverage * len(chances)
    taken = np.clip(kept - (sizes.cumsum() - sizes), 0, sizes)
    return float((taken * np.bincount(groups, wrong) / sizes).sum() / kept)


def of_training(count: int, pairs: int) -> str:
    """What is said of a calibration on `pairs`, of which `count` have the keys of training pairs.

    Captions of training pairs are right more often than others of the same probability.
    """
    return (
        f"{count:,} of the {pairs:,} pairs that it was calibrated on have the keys of pairs that "
        "it was trained on: if they are the same images, its confidence is too high."
    )
