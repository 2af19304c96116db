"""Pairs with pasted things: where their ends differ, and what is said of it."""

from __future__ import annotations

import numpy as np
import pytest

from cc_train.systems.procap import pasting

SIDE, GRID = 64, (8, 8)
FLOOR = np.full((SIDE, SIDE, 3), 100, np.uint8)


def things() -> np.ndarray:
    """Strong colors everywhere, so that whatever is cut out of it is seen."""
    rng = np.random.default_rng(0)
    return np.kron(rng.integers(0, 2, (16, 16, 3)), np.ones((4, 4, 1))).astype(np.uint8) * 255


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A camera and a light that do not move, and one thing in each pair."""
    for name in ("CAMERA", "TURN", "LIGHT", "RAMP", "TINT"):
        monkeypatch.setattr(pasting, name, 0.0)
    monkeypatch.setattr(pasting, "MAX_THINGS", 1)


def only(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(pasting, "CHANCES", tuple(float(way == one) for one in pasting.WAYS))


def differing(pair: pasting.Pasted, levels: int = 0) -> np.ndarray:
    """The share of each place's pixels that differ by more than so many levels."""
    differs = np.ptp(pair.ends.astype(int), axis=0).max(-1) > levels
    shares: np.ndarray = differs.reshape(8, 8, 8, 8).mean((1, 3))
    return shares


@pytest.mark.parametrize(
    ("way", "kind", "end"),
    [("appeared", pasting.APPEARED, 1), ("vanished", pasting.VANISHED, 0)],
)
@pytest.mark.usefixtures("still")
def test_a_thing_of_one_end(monkeypatch: pytest.MonkeyPatch, way: str, kind: int, end: int) -> None:
    """Keeps away: kinds of the other end, of other places, or with rows and columns swapped."""
    only(monkeypatch, way)
    seen = 0
    for seed in range(20):
        pair = pasting.paste(FLOOR, things(), GRID, np.random.default_rng(seed))
        assert set(np.unique(pair.kinds)) <= {pasting.NONE, kind}
        assert (pair.ends[1 - end] == 100).all()
        shares = differing(pair)
        assert (shares[pair.kinds == kind] >= pasting.COVERED).all()
        assert (pair.kinds[shares > 0.6] == kind).all(), "soft edges cover less than they touch"
        seen += (pair.kinds == kind).sum()
    assert seen > 20


@pytest.mark.usefixtures("still")
def test_the_same_thing_in_both_ends_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "both")
    for seed in range(10):
        pair = pasting.paste(FLOOR, things(), GRID, np.random.default_rng(seed))
        assert not pair.kinds.any()
        assert (pair.ends[0] != 100).any()
        assert (pair.ends[1] != 100).any()


@pytest.mark.usefixtures("still")
def test_a_moved_thing_is_marked_where_it_was_and_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "moved")
    monkeypatch.setattr(pasting, "MOVE", (0.5, 0.5))
    marked = np.zeros(2, int)
    for seed in range(20):
        pair = pasting.paste(FLOOR, things(), GRID, np.random.default_rng(seed))
        for end in range(2):
            shown = (pair.ends[end] != 100).any(-1).reshape(8, 8, 8, 8).mean((1, 3)) > 0.6
            assert (pair.kinds[shown] == pasting.MOVED).all()
            marked[end] += shown.sum()
    assert marked.min() > 20


@pytest.mark.usefixtures("still")
def test_grey_in_another_hue_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: places that are said to differ, and look alike."""
    only(monkeypatch, "recolored")
    rng = np.random.default_rng(3)
    pairs = [pasting.paste(FLOOR, FLOOR, GRID, rng) for _ in range(30)]
    for pair in pairs:
        share = differing(pair, pasting.VISIBLE).max()
        assert share > 0 if pair.kinds.any() else share < 0.6
    assert 0 < sum(pair.kinds.any() for pair in pairs) < 30  # those that became paler or darker


def test_a_moved_camera_changes_pixels_and_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "both")
    pair = pasting.paste(things(), things(), GRID, np.random.default_rng(0))
    assert (pair.ends[0] != pair.ends[1]).mean() > 0.3
    assert not pair.kinds.any()
