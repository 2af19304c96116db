"""The paired bootstrap: how certain it is that one system scores higher than another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)


def gain(
    first: Sequence[Mapping[str, float]],
    later: Sequence[Mapping[str, float]],
    rng: np.random.Generator,
) -> tuple[float, float, float]:
    """How much higher `later` scores than `first`: mean over pairs and runs, 95 % interval.

    Args:
        first, later: The scores by pair of each run of a system; all runs cover the same pairs.
            Pairs are drawn with replacement, the same ones for both systems. If a system has
            several runs, its runs are drawn too, since a system is its training and not one of its
            seeds. Two systems with one run each are compared over pairs alone.
    """
    ids = sorted(first[0])
    scores = [
        np.array([[run[id] for id in ids] for run in runs], dtype=np.float64)
        for runs in (first, later)
    ]
    difference = float(scores[1].mean() - scores[0].mean())
    count = len(ids)
    pairs = rng.integers(count, size=(RESAMPLES, count))
    means = [np.stack([run[pairs].mean(axis=1) for run in runs], axis=1) for runs in scores]
    drawn = [_over_runs(of_runs, rng) for of_runs in means]
    low, high = np.percentile(drawn[1] - drawn[0], PERCENTILES)
    return difference, float(low), float(high)


def interval(scores: Sequence[float], rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of the mean of scores over pairs that are drawn with replacement."""
    values = np.asarray(scores, dtype=np.float64)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, PERCENTILES)
    return float(low), float(high)


def _over_runs(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over runs that are drawn with replacement: [resamples, runs] → [resamples]."""
    count = means.shape[1]
    if count == 1:
        return means[:, 0]
    runs = rng.integers(count, size=means.shape)
    drawn: np.ndarray = np.take_along_axis(means, runs, axis=1).mean(axis=1)
    return drawn
