"""The calibration error of a captioner on the pairs of shards."""

from __future__ import annotations

from typing import Any

import pytest

from cc_train.captioner import Caption
from cc_train.evaluation import calibrating
from cc_train.evaluation.calibrating import Judged


def test_a_confidence_of_zero_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: captions of confidence 0 left out, so that the rest meet others' verdicts."""
    captions = [Caption("a", confidence=0.0), Caption("b", confidence=1.0)]
    judged = Judged(captions, [False, True])
    monkeypatch.setattr(calibrating, "judged", lambda captioner, shards: judged)
    captioner: Any = None
    rows = calibrating.measured(captioner, ["x"], 0.5)
    assert rows["calibration error"] == "0.0 %; a constant confidence of 50.0 % has 0.0 %"
    assert rows["Brier score"] == "0.0000; a constant confidence of 50.0 % has 0.2500"
    assert rows["AUROC of the confidence"].startswith("1.000; ")
    # Of 1.6 captions 0.6 are wrong.
    assert rows["wrong among the 80 % with the highest confidence"].startswith("37.5 %; ")


def test_without_a_wrong_caption_nothing_is_ranked() -> None:
    """Keeps away: an AUROC of captions that are all right, which is no number."""
    assert not any("AUROC" in name for name in calibrating.rows([0.9, 0.8], [True, True], 0.9))
