"""DBSCAN over cells: golden labels, boxes and centres; cells and weights change nothing."""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.steps.changes.clustering import clusters, labels
from tests.conftest import ROOT

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/mllm/regions.json").read_text())["dbscan"]


def test_the_points_are_the_grid_row_by_row() -> None:
    """Keeps away: golden labels that belong to points in another order than ours."""
    assert np.argwhere(GOLDEN["grid"]).tolist() == GOLDEN["points_row_major"]


@pytest.mark.parametrize("name", GOLDEN["labels"])
def test_golden_labels(name: str) -> None:
    """Keeps away: a neighbourhood without its own point, or one that ends before `eps`."""
    _, eps, _, min_samples = name.split()
    points = np.array(GOLDEN["points_row_major"])
    assert labels(points, float(eps), int(min_samples)).tolist() == GOLDEN["labels"][name]


def test_golden_boxes_and_centres() -> None:
    """Keeps away: x and y exchanged, and boxes that leave out their last row and column."""
    changed = np.array(GOLDEN["grid"], bool)
    ours = clusters(changed.astype(np.float32), changed, eps=2.0, min_samples=4, cell=1)
    assert [list(one.box) for one in ours] == GOLDEN["boxes_eps2"]
    assert [list(one.centre) for one in ours] == GOLDEN["centres_eps2_xy"]
    assert [one.area for one in ours] == [10, 6]


def test_the_strongest_cluster_is_first() -> None:
    """Keeps away: `top` that drops the change and leaves a larger, fainter shadow."""
    difference = np.zeros((40, 40), np.float32)
    difference[2:14, 2:14] = 21
    difference[25:32, 25:32] = 200
    ours = clusters(difference, difference > 20, eps=3, min_samples=10, cell=2)
    assert [one.area for one in ours] == [49, 144]
    assert ours[0].strength == 49 * 200


def test_cells_weigh_what_they_hold() -> None:
    """Keeps away: a single changed pixel that counts as a full cell of four."""
    changed = np.zeros((20, 20), bool)
    changed[0, 0:16:4] = True  # four cells of one pixel each, 4 px apart
    assert clusters(changed * 1.0, changed, eps=4.5, min_samples=4, cell=2) == []
    changed[0:2, 0:16] = True
    [whole] = clusters(changed * 1.0, changed, eps=4.5, min_samples=4, cell=2)
    assert whole.area == 32


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(5, 40), st.integers(5, 40))
def test_clusters_are_changed_pixels_and_disjoint(
    seed: int, cell: int, height: int, width: int
) -> None:
    """Keeps away: cells at the edge that mark pixels outside the image or unchanged ones."""
    rng = np.random.default_rng(seed)
    changed = rng.uniform(size=(height, width)) < rng.uniform(0, 0.6)
    ours = clusters(changed.astype(np.float32), changed, eps=3.0, min_samples=6, cell=cell)
    total = sum((one.pixels.astype(int) for one in ours), np.zeros((height, width), int))
    assert total.max(initial=0) <= 1
    assert not (total > 0)[~changed].any()
    for one in ours:
        x0, y0, x1, y1 = one.box
        assert one.pixels[y0:y1, x0:x1].sum() == one.area > 0
        assert x0 <= one.centre[0] < x1


def specks(side: int, step: int) -> np.ndarray:
    """Changed squares of 5 px, `step` px apart, bool [side, side]."""
    inside = np.arange(side) % step < 5
    return inside[:, None] & inside


def test_small_clusters_take_no_memory() -> None:
    """Keeps away: a photograph of gravel, whose thousands of specks take a mask each."""
    changed = specks(1024, 25)
    tracemalloc.start()
    none = clusters(changed * 50.0, changed, 3.0, 10, 2, min_area=400)
    twenty = clusters(changed * 50.0, changed, 3.0, 10, 2, min_area=25, most=20)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not none
    assert [one.area for one in twenty] == 20 * [25]
    assert peak < 100 * changed.size  # there are 1681 clusters, of a byte a pixel each


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 5))
def test_what_is_left_out_changes_nothing_of_the_rest(seed: int, least: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    changed = rng.uniform(size=(40, 30)) < 0.2
    difference = (changed * rng.integers(1, 4, changed.shape)).astype(np.float32)
    every = clusters(difference, changed, 2.0, 4, 2)
    some = clusters(difference, changed, 2.0, 4, 2, min_area=least, most=most)
    expected = [one for one in every if one.area >= least][:most]
    assert [(one.strength, one.box) for one in some] == [(o.strength, o.box) for o in expected]
    assert all((a.pixels == b.pixels).all() for a, b in zip(some, expected, strict=True))
    keys = [(-one.strength, one.box) for one in every]
    assert keys == sorted(keys)


def test_without_scikit_learn_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: an ImportError in a worker for an extra that was not installed."""
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match=r"pip install '\.\[mllm\]'"):
        labels(np.zeros((1, 2)), 1.0, 1)
