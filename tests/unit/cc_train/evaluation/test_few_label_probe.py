"""The probe on made-up features whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from cc_prep.records import Facts, ObjectAttributes
from cc_prep.synth.facts import attributes as solid
from cc_train.data import supervision
from cc_train.evaluation import few_label_probe
from cc_train.evaluation.few_label_probe import ATTRIBUTES, CHANGED, LOCATION, TYPE, Labels, probe

SCENES, GRID, CHANNELS = 160, (4, 5), 24
RNG = np.random.default_rng(5)


def attributes(place: tuple[float, float]) -> ObjectAttributes:
    words = (str(RNG.choice(names)) for names in supervision.SOLIDS.attributes.values())
    return solid(*words, location=place)


def facts(changed: bool) -> Facts:
    if not changed:
        return Facts("none")
    place = ((RNG.integers(5) + 0.5) / 5, (RNG.integers(4) + 0.5) / 4)
    kind = str(RNG.choice(["color", "add", "drop"]))
    one = attributes((float(place[0]), float(place[1])))
    return Facts(kind, None if kind == "add" else one, None if kind == "drop" else one)


@pytest.fixture(scope="module")
def pairs() -> list[Facts]:
    return [facts(number % 2 == 0) for number in range(2 * SCENES)]


@pytest.fixture(scope="module")
def labels(pairs: list[Facts]) -> Labels:
    return Labels.of([f"s{number // 2:04d}" for number in range(2 * SCENES)], pairs)


def noise(seed: int) -> np.ndarray:
    shape = (2 * SCENES, GRID[0] * GRID[1], CHANNELS)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def telling(pairs: list[Facts], labels: Labels) -> np.ndarray:
    """Noise, and at the object's place a channel of its own for each class."""
    features = 0.1 * noise(1)
    for number, one in enumerate(pairs):
        shown = one.before or one.after
        if shown is None:
            continue
        u, v = shown.location
        cell = int(v * GRID[0]) * GRID[1] + int(u * GRID[1])
        offset = 0
        for value, size in zip(labels.classes[number], (6, 8, 3, 2, 2), strict=True):
            features[number, cell, offset + value] += 2
            offset += size
    return features


def test_everything_is_read_where_it_is_shown(pairs: list[Facts], labels: Labels) -> None:
    wide = np.concatenate((telling(pairs, labels), 0.1 * noise(3)), axis=2)
    figures = probe({"shown": [wide]}, labels, GRID, counts=(80,), draws=3)["shown"][80]
    assert figures[CHANGED].value > 0.99
    assert figures[TYPE].value > 0.97
    assert figures[LOCATION].value > 0.97
    assert figures[ATTRIBUTES].value > 0.9
    assert all(one.gain == 0 and one.gain_interval == (0, 0) for one in figures.values())


def test_noise_is_at_chance(labels: Labels) -> None:
    figures = probe({"noise": [noise(4)]}, labels, GRID, counts=(80,), draws=6)["noise"][80]
    chances = {CHANGED: 0.5, TYPE: 1 / 3, LOCATION: 1 / 20, ATTRIBUTES: (1 / 8 + 1 / 3 + 1) / 4}
    for name, chance in chances.items():
        assert figures[name].value == pytest.approx(chance, abs=0.08), name


def test_what_shows_more_gains_and_its_interval_is_above_zero(
    pairs: list[Facts], labels: Labels
) -> None:
    blind, shown = noise(6), telling(pairs, labels)
    readings = {"blind": [blind], "shown": [shown], "both": [blind, shown]}
    found = probe(readings, labels, GRID, counts=(20, 80), draws=4)
    for count in (20, 80):
        for name in ("shown", "both"):
            for figure, one in found[name][count].items():
                low, high = one.gain_interval
                assert 0 < low <= one.gain <= high, (name, count, figure)
                assert one.gain == pytest.approx(one.value - found["blind"][count][figure].value)
                assert one.interval[0] <= one.value <= one.interval[1]
    assert found["shown"][80][TYPE].value >= found["shown"][20][TYPE].value


def test_more_labelled_scenes_than_there_are_is_left_out(labels: Labels) -> None:
    found = probe({"noise": [noise(7)]}, labels, GRID, counts=(10, 81), draws=2)
    assert list(found["noise"]) == [10]


def test_same_seed_same_figures(labels: Labels) -> None:
    ways = [
        probe({"x": [noise(8)]}, labels, GRID, counts=(20,), draws=2, seed=s) for s in (0, 0, 1)
    ]
    assert ways[0] == ways[1] != ways[2]


def test_leaving_one_out_in_closed_form() -> None:
    """The penalty is that of refitting without each pair in turn."""
    rng = np.random.default_rng(9)
    x, y = rng.standard_normal((12, 5)), rng.standard_normal((12, 1))

    def refitted(penalty: float) -> float:
        errors = []
        for out in range(len(x)):
            kept = np.arange(len(x)) != out
            mean, offset = x[kept].mean(0), y[kept].mean(0)
            centred = x[kept] - mean
            inner = centred.T @ centred + penalty * np.eye(x.shape[1])
            weights = np.linalg.solve(inner, centred.T @ (y[kept] - offset))
            errors.append(((x[out] - mean) @ weights + offset - y[out])[0] ** 2)
        return sum(errors)

    best = min(few_label_probe.PENALTIES, key=refitted)
    centred = x - x.mean(0)
    inner = centred.T @ centred + best * np.eye(5)
    expected = centred @ np.linalg.solve(inner, centred.T @ (y - y.mean(0))) + y.mean(0)
    assert few_label_probe._ridge(x, y, x) == pytest.approx(expected)


def test_area_under_the_curve() -> None:
    from scipy.stats import mannwhitneyu

    rng = np.random.default_rng(10)
    scores, positive = rng.integers(0, 9, 40).astype(float), np.arange(40) % 2 == 0
    pairs = positive.sum() * (~positive).sum()
    expected = mannwhitneyu(scores[positive], scores[~positive]).statistic / pairs
    assert few_label_probe._auc_terms(scores, positive).mean() == pytest.approx(expected)
