"""Confidence: what was promised comes true, and strange pairs get less."""

from __future__ import annotations

import numpy as np
import pytest

from cc_train import calibration
from cc_train.calibration import Calibration


def planted(count: int, slope: float, offset: float) -> tuple[list[float], list[bool]]:
    rng = np.random.default_rng(0)
    scores = -rng.exponential(1.0, count)
    chances = 1 / (1 + np.exp(-(slope * scores + offset)))
    return scores.tolist(), (rng.random(count) < chances).tolist()


def test_planted_chances_are_recovered() -> None:
    scores, right = planted(20_000, 1.7, 2.5)
    fitted = calibration.fit(scores, right)
    assert (fitted.slope, fitted.offset) == pytest.approx((1.7, 2.5), abs=0.1)
    confidences = [fitted.confidence(score) for score in scores]
    assert calibration.calibration_error(confidences, right) < 0.01


@pytest.mark.parametrize("mean", [-3.0, -8.0, -40.0])
def test_long_captions_are_fitted_as_well(mean: float) -> None:
    """Keeps away: a fit that ends elsewhere where no score is near 0, as of rich captions."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        scores = rng.normal(mean, 0.7, 600)
        right = rng.random(600) < 1 / (1 + np.exp(-3 * (scores - mean)))
        fitted = calibration.fit(scores.tolist(), right.tolist())
        confidences = [fitted.confidence(score) for score in scores]
        assert calibration.calibration_error(confidences, right.tolist()) < 0.06
    separable = [-4.0, -3.0, -2.0, -5.0, -3.5, -6.0] * 100
    fitted = calibration.fit(separable, [score > -4.5 for score in separable])
    assert fitted.confidence(-2.0) > 0.99
    assert fitted.confidence(-6.0) < 0.01


def test_overconfidence_is_measured() -> None:
    assert calibration.calibration_error([0.99] * 100, [True] * 60 + [False] * 40) == (
        pytest.approx(0.39)
    )
    assert calibration.calibration_error([1.0, 0.0], [True, False]) == 0


@pytest.mark.parametrize("right", [True, False])
def test_one_outcome_alone_stays_finite(right: bool) -> None:
    """Keeps away: a slope without end where every held-out caption is right."""
    fitted = calibration.fit([-0.1, -0.2, -3.0], [right] * 3)
    assert np.isfinite([fitted.slope, fitted.offset]).all()
    assert (fitted.confidence(-0.1) > 0.5) == right


def test_strange_pairs_get_less() -> None:
    fitted = Calibration(1.0, 4.0, ood_threshold=2.0)
    usual = fitted.confidence(-0.1, 1.5)
    assert usual == fitted.confidence(-0.1) == fitted.confidence(-0.1, 2.0)
    assert fitted.confidence(-0.1, 20.0) == pytest.approx(usual / 100)
    assert Calibration(1.0, 4.0).confidence(-0.1, 20.0) == usual


def test_what_a_confidence_is_worth() -> None:
    """By hand: four captions, the wrong one third. Keeps away: a risk among the least sure."""
    quality = calibration.quality([0.9, 0.8, 0.7, 0.2], [True, True, False, True])
    assert quality.brier == pytest.approx((0.01 + 0.04 + 0.49 + 0.64) / 4)
    assert quality.auroc == pytest.approx(2 / 3)  # above the wrong one are two of three
    assert quality.risk == pytest.approx({0.8: 1 / 3.2, 0.9: 1 / 3.6})
    surest_wrong = calibration.quality([0.9, 0.8, 0.7, 0.2, 0.1], [False, *[True] * 4])
    assert surest_wrong.auroc == 0
    assert surest_wrong.risk == pytest.approx({0.8: 1 / 4, 0.9: 1 / 4.5})


def test_a_constant_knows_nothing_of_a_caption() -> None:
    """Keeps away: equal confidences that are ranked by the order of the captions."""
    right = [True] * 30 + [False] * 10
    constant = calibration.quality([0.75] * 40, right)
    assert constant.error == 0
    assert constant.brier == pytest.approx(0.75 * 0.25)
    assert constant.auroc == 0.5
    assert constant.risk == pytest.approx({0.8: 0.25, 0.9: 0.25})
    assert calibration.quality([0.4, 0.6], [True, True]).auroc is None


def test_quality_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import brier_score_loss, roc_auc_score

    scores, right = planted(500, 1.0, 1.0)
    chances = np.round([Calibration(1.0, 1.0).confidence(score) for score in scores], 2)
    quality = calibration.quality(chances.tolist(), right)
    assert quality.auroc == pytest.approx(roc_auc_score(right, chances))
    assert quality.brier == pytest.approx(brier_score_loss(right, chances))
