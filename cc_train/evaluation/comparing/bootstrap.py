"""The paired bootstrap: how certain it is that one system scores higher than another.

Scenes are drawn, and a scene brings all of its pairs. Pairs of one scene share an image, so a
captioner that fails on one of them tends to fail on the other: drawn one by one, they would count
as more evidence than they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cc_train.evaluation.captions.coco import scene_of

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
            Scenes are drawn with replacement, the same ones for both systems. If a system has
            several runs, its runs are drawn too, since a system is its training and not one of its
            seeds. Two systems with one run each are compared over scenes alone.
    """
    ids = sorted(first[0])
    scores = [
        np.array([[run[id] for id in ids] for run in runs], dtype=np.float64)
        for runs in (first, later)
    ]
    difference = float(scores[1].mean() - scores[0].mean())
    scenes = _numbers(ids)
    draws = _draws(scenes, rng)
    drawn = [_over_runs(_means(of_runs, scenes, draws), rng) for of_runs in scores]
    low, high = np.percentile(drawn[1] - drawn[0], PERCENTILES)
    return difference, float(low), float(high)


def interval(
    names: Sequence[str], scores: Sequence[float], rng: np.random.Generator
) -> tuple[float, float]:
    """The 95 % interval of the mean of the scores of pairs, by their names, over drawn scenes."""
    scenes = _numbers(names)
    means = _means(np.asarray([scores], dtype=np.float64), scenes, _draws(scenes, rng))
    low, high = np.percentile(means, PERCENTILES)
    return float(low), float(high)


def _numbers(names: Sequence[str]) -> np.ndarray:
    """The number of each pair's scene, int64 [pairs], counted in the order of the names."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(scene_of(name), len(numbers)) for name in names])


def _draws(scenes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers of scenes that are drawn with replacement, int64 [resamples, scenes]."""
    count = int(scenes.max()) + 1
    return rng.integers(count, size=(RESAMPLES, count))


def _means(scores: np.ndarray, scenes: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Means over the pairs of drawn scenes: [runs, pairs] → [resamples, runs]."""
    sums = [np.bincount(scenes, weights=run) for run in scores]
    pairs = np.bincount(scenes)[draws].sum(axis=1)
    return np.stack([of_run[draws].sum(axis=1) / pairs for of_run in sums], axis=1)


def _over_runs(means: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over runs that are drawn with replacement: [resamples, runs] → [resamples]."""
    count = means.shape[1]
    if count == 1:
        return means[:, 0]
    runs = rng.integers(count, size=means.shape)
    drawn: np.ndarray = np.take_along_axis(means, runs, axis=1).mean(axis=1)
    return drawn
