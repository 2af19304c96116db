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
    assert calibrating.error(captioner, ["x"]) == 0
