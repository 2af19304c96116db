"""What a linear probe of few labels reads of a change from features of both images.

A reading is what differs between two images at every place. From it the probe tells whether
something changed, of what type, where, and which looks the object has. It is fitted on the pairs of
a few scenes and measured on those of other scenes, several times with other labelled scenes. All is
in closed form: a probe of 1,000 pairs takes a minute or two of a core, most of it for the places.

Source of the leave-one-out choice: Rifkin and Lippert, Notes on regularized least squares, 2007;
of the area under the curve as a mean over pairs: DeLong et al., Biometrics, 1988.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cc_prep.records import Facts
from cc_train.data import supervision
from cc_train.data.supervision import SOLIDS, UNKNOWN

COUNTS = (50, 100, 300)
DRAWS = 10
PENALTIES = 10.0 ** np.arange(-2, 2, 0.5)
SHRINKAGE = 0.1
NEAR = 0.1  # of the image's side: how far a place may be off, less than one of 7 x 7 places
RESAMPLES = 500
PERCENTILES = (2.5, 97.5)
CHANGED, TYPE, LOCATION, ATTRIBUTES = "changed", "type", "location", "attributes"
FIGURES = (CHANGED, TYPE, LOCATION, ATTRIBUTES)


@dataclass(frozen=True)
class Labels:
    """What is known of P pairs.

    Attributes:
        scenes: The number of each pair's scene, int [P].
        changed: Whether something changed, bool [P].
        classes: Type of change, color, shape, material and size of its object, int [P, 5]; -1 where
            there is none.
        places: The object's centre (u, v) before and after, float [P, 2, 2]; NaN where there is
            none.
    """

    scenes: np.ndarray
    changed: np.ndarray
    classes: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, scenes: Sequence[str], facts: Sequence[Facts]) -> Labels:
        """The labels of pairs, from the names of their scenes and their facts."""
        ends = [[one.before, one.after] for one in facts]
        places = [[(np.nan,) * 2 if o is None else o.location for o in pair] for pair in ends]
        return cls(
            np.unique(scenes, return_inverse=True)[1],
            np.array([one.type != "none" for one in facts]),
            np.array(
                [SOLIDS.classes(one)[: 1 + len(supervision.SOLIDS.attributes)] for one in facts]
            ).reshape(-1, 5),
            np.array(places, np.float64).reshape(-1, 2, 2),
        )


@dataclass(frozen=True)
class Figure:
    """A figure with its 95 % interval over tested scenes and labelled ones.

    Attributes:
        gain, gain_interval: How much more it is than that of the first reading.
    """

    value: float
    interval: tuple[float, float]
    gain: float
    gain_interval: tuple[float, float]


def probe(
    readings: Mapping[str, Sequence[np.ndarray]],
    labels: Labels,
    grid: tuple[int, int],
    *,
    counts: Sequence[int] = COUNTS,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, dict[int, dict[str, Figure]]]:
    """What can be read, by reading, number of labelled scenes and name in `FIGURES`.

    `changed` is the area under the curve, the others are shares of the changed pairs: of the right
    type, of a place that is right within `NEAR`, of right looks (the mean of all four).

    Args:
        readings: By name, one or more blocks float [P, rows * columns, C]: what differs at every
            place between the two images of each pair. Blocks weigh alike, whatever their channels.
            The first reading is the one that the others are compared with.
        labels: What is known of the pairs. A half of the scenes is tested.
        grid: Rows and columns of the places.
        counts: Numbers of labelled scenes; one that more than the other half has is left out.
        draws: How often other scenes are labelled.
        seed: Of the division of the scenes.
    """
    rng = np.random.default_rng(seed)
    scenes = rng.permutation(np.unique(labels.scenes))
    tested, known = np.split(scenes, [len(scenes) // 2])
    test = np.flatnonzero(np.isin(labels.scenes, tested))
    drawn = {
        count: [rng.permutation(known)[:count] for _ in range(draws)]
        for count in counts
        if count <= len(known)
    }
    scores: dict[str, dict[int, dict[str, np.ndarray]]] = {}
    for name, blocks in readings.items():
        pooled = np.concatenate([_pooled(block) for block in blocks], axis=1)
        places = _Places.of([block[labels.changed] for block in blocks], grid)
        scores[name] = {}
        for count, of_draws in drawn.items():
            tables = [
                _scores(pooled, places, labels, np.flatnonzero(np.isin(labels.scenes, some)), test)
                for some in of_draws
            ]
            scores[name][count] = {
                figure: np.stack([table[figure] for table in tables]) for figure in FIGURES
            }
    first = scores[next(iter(scores))]
    return {
        name: {
            count: {
                figure: _figure(table, first[count][figure], seed)
                for figure, table in tables.items()
            }
            for count, tables in of_counts.items()
        }
        for name, of_counts in scores.items()
    }


def _scores(
    pooled: np.ndarray, places: _Places, labels: Labels, train: np.ndarray, test: np.ndarray
) -> dict[str, np.ndarray]:
    """What each tested scene adds to each figure, float [scenes], of one draw.

    Args:
        pooled: float [P, K].
        places: What the places are found by.
        labels: Of all pairs.
        train: Numbers of the labelled pairs.
        test: Numbers of the tested pairs.
    """
    changed = labels.changed
    told = _ridge(pooled[train], changed[train, None].astype(float), pooled[test])[:, 0]
    train, of_changed = train[changed[train]], test[changed[test]]
    truth = labels.classes[of_changed]
    onehot = [_one_hot(labels.classes[train, i]) for i in range(labels.classes.shape[1])]
    read = _ridge(pooled[train], np.concatenate(onehot, axis=1), pooled[of_changed])
    ends = np.cumsum([part.shape[1] for part in onehot])[:-1]
    right = np.stack(
        [part.argmax(1) == truth[:, i] for i, part in enumerate(np.split(read, ends, axis=1))],
        axis=1,
    )
    scenes = labels.scenes[of_changed]
    number = np.cumsum(changed) - 1  # of a pair among those that `places` has
    found = places.found(labels.places[changed], number[train], number[of_changed])
    return {
        CHANGED: _by_scene(_auc_terms(told, changed[test]), labels.scenes[test]),
        TYPE: _by_scene(right[:, 0], scenes),
        LOCATION: _by_scene(found, scenes),
        ATTRIBUTES: _by_scene(right[:, 1:].mean(1), scenes),
    }


def _pooled(block: np.ndarray) -> np.ndarray:
    """Maximum, minimum and mean size over all places, standardised, float [P, 3 C].

    Their squares sum to 1 on average, so that every block weighs the same.
    """
    parts = np.concatenate((block.max(1), block.min(1), np.abs(block).mean(1)), axis=1)
    parts = parts.astype(np.float64)
    spread = parts.std(0)
    scaled: np.ndarray = (parts - parts.mean(0)) / np.where(spread > 1e-9, spread, 1)
    return scaled / np.sqrt(parts.shape[1])


def _ridge(x: np.ndarray, y: np.ndarray, x_test: np.ndarray) -> np.ndarray:
    """Predictions of y [n, K] by ridge regression, its penalty chosen by leaving one out.

    One penalty is chosen for all columns.
    """
    mean, offset = x.mean(0), y.mean(0)
    centred, targets = x - mean, y - offset
    values, vectors = np.linalg.eigh(centred @ centred.T)
    values, rotated = values.clip(min=0), vectors.T @ targets
    errors = []
    for penalty in PENALTIES:
        kept = values / (values + penalty)
        leverage = (vectors**2) @ kept + 1 / len(x)
        left = targets - vectors @ (kept[:, None] * rotated)
        errors.append((left**2 / (1 - leverage).clip(min=1e-6)[:, None] ** 2).sum())
    penalty = PENALTIES[int(np.argmin(errors))]
    weights = centred.T @ (vectors @ (rotated / (values + penalty)[:, None]))
    predicted: np.ndarray = (x_test - mean) @ weights + offset
    return predicted


@dataclass(frozen=True)
class _Places:
    """Fisher's discriminant of changed places; what does not depend on the labels.

    Attributes:
        whitened: Sizes of the differences of changed pairs, centred in each pair and decorrelated,
            float32 [pairs, N, C].
        centres: (u, v) of the places, float [N, 2].
    """

    whitened: np.ndarray
    centres: np.ndarray

    @classmethod
    def of(cls, blocks: Sequence[np.ndarray], grid: tuple[int, int]) -> _Places:
        scaled = []
        for block in blocks:
            sizes = np.abs(block).astype(np.float32)
            sizes -= sizes.mean(1, keepdims=True)
            deviation = sizes.std((0, 1))
            sizes /= np.where(deviation > 1e-6, deviation, 1) * block.shape[2] ** 0.5
            scaled.append(sizes)
        joined = np.concatenate(scaled, axis=2)
        flat = joined.reshape(-1, joined.shape[2])
        covariance = (flat.T @ flat).astype(np.float64) / len(flat)
        values, vectors = np.linalg.eigh(covariance)
        scale = 1 / np.sqrt(values.clip(min=0) + SHRINKAGE * values.mean() + 1e-12)
        whitened = (flat @ (vectors * scale).astype(np.float32)).reshape(joined.shape)
        rows, columns = grid
        v, u = np.meshgrid(
            (np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij"
        )
        return cls(whitened, np.stack((u.ravel(), v.ravel()), axis=1))

    def found(self, places: np.ndarray, train: np.ndarray, test: np.ndarray) -> np.ndarray:
        """Whether the place that looks most changed is near the object's, bool [tested pairs].

        Args:
            places: The object's places in the changed pairs, float [pairs, 2, 2].
            train: Numbers of the labelled pairs among them.
            test: Numbers of the tested pairs among them.
        """
        nearest = self._distances(places[train]).argmin(2)
        known = ~np.isnan(places[train, :, 0])
        rows = np.broadcast_to(train[:, None], known.shape)
        direction = self.whitened[rows[known], nearest[known]].mean(0)
        guessed = (self.whitened[test] @ direction).argmax(1)
        distances = self._distances(places[test])[np.arange(len(test)), :, guessed]
        return np.asarray(distances.min(1) <= NEAR)

    def _distances(self, places: np.ndarray) -> np.ndarray:
        """Of every place from the object's, along the farther axis, [P, 2, N]; inf if unknown."""
        apart = np.abs(places[:, :, None] - self.centres).max(3)
        return np.where(np.isnan(apart), np.inf, apart)


def _one_hot(classes: np.ndarray) -> np.ndarray:
    """float [n, classes up to the largest]; an unknown one has none."""
    columns = np.arange(max(int(classes.max(initial=UNKNOWN)) + 1, 1))
    return (classes[:, None] == columns).astype(float)


def _auc_terms(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """float [n] whose mean is the area under the curve where half are positive.

    It is each score's share of the scores of the other class that it is ahead of, ties as a half.
    """
    terms = np.empty(len(scores))
    for own, sign in ((positive, 1), (~positive, -1)):
        others = np.sort(sign * scores[~own])
        mine = sign * scores[own]
        ahead = np.searchsorted(others, mine) + np.searchsorted(others, mine, side="right")
        terms[own] = ahead / (2 * max(len(others), 1))
    return terms


def _by_scene(values: np.ndarray, scenes: np.ndarray) -> np.ndarray:
    """Means over the pairs of each scene, in the order of the scenes' numbers."""
    _, number = np.unique(scenes, return_inverse=True)
    means: np.ndarray = np.bincount(number, values) / np.bincount(number)
    return means


def _figure(table: np.ndarray, first: np.ndarray, seed: int) -> Figure:
    """The figure of a table float [draws, scenes] beside that of the first reading."""
    gain = table - first
    return Figure(
        float(table.mean()), _interval(table, seed), float(gain.mean()), _interval(gain, seed)
    )


def _interval(table: np.ndarray, seed: int) -> tuple[float, float]:
    """95 % interval of the mean of [draws, scenes], where both are drawn with replacement."""
    rng = np.random.default_rng(seed)
    draws, scenes = table.shape
    weights = [
        rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
        for count in (draws, scenes)
    ]
    means = np.einsum("rd,ds,rs->r", weights[0], table, weights[1], optimize=True)
    low, high = np.percentile(means, PERCENTILES)
    return float(low), float(high)
