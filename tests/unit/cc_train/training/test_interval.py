"""Logged losses are means over the interval, also across a resume."""

from __future__ import annotations

import json

import pytest
import torch

from cc_train.distributed import ALONE
from cc_train.training.interval import IntervalMeans


def test_losses_are_means_over_the_steps_that_have_them() -> None:
    """Keeps away: the noise of one step as the curve of an interval."""
    interval = IntervalMeans()
    for step in range(4):
        shares = {"total": torch.tensor(float(step))}
        if step >= 2:
            shares["late"] = torch.tensor(1.0)
        interval.add(shares)
    assert interval.take(ALONE) == {"total": 1.5, "late": 1.0}
    interval.add({"total": torch.tensor(7.0)})
    assert interval.take(ALONE) == {"total": 7.0}
    assert interval.take(ALONE) == {}


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_run_logs_what_the_undisturbed_one_does(stop: int) -> None:
    losses = torch.rand(5, generator=torch.Generator().manual_seed(0))
    whole, first, second = IntervalMeans(), IntervalMeans(), IntervalMeans()
    for loss in losses:
        whole.add({"total": loss})
    for loss in losses[:stop]:
        first.add({"total": loss})
    second.restore(json.loads(json.dumps(first.state(ALONE))), "cpu")
    for loss in losses[stop:]:
        second.add({"total": loss})
    assert second.take(ALONE) == whole.take(ALONE)
