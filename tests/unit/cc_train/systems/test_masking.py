"""Masks of stage 1: their limits, and what their sizes mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_train.systems.procap import masking
from cc_train.systems.procap.masking import Masks


def boxes(masks: Masks, rows: int = 40, columns: int = 40) -> list[tuple[int, int]]:
    """Heights and widths of random boxes."""
    sizes = []
    for seed in range(300):
        box = masking.box((rows, columns), masks, np.random.default_rng(seed))
        sizes.append((int(box.any(1).sum()), int(box.any(0).sum())))
    return sizes


def test_defaults_are_the_references() -> None:
    """Keeps away: a recipe that differs from ProCap's by a number."""
    masks = Masks()
    assert masks.chances == (0.7, 0.1, 0.1, 0.1, 0.0)
    assert (masks.keep_prob, masks.box_area, masks.aspect) == ((0.2, 0.2), (0.2, 0.8), 2.0)


@pytest.mark.parametrize("name", ["random", "full", "box_masked", "box_visible", "interior"])
@pytest.mark.parametrize("chance", [-0.1, 1.1])
def test_chances_are_chances(name: str, chance: float) -> None:
    with pytest.raises(ValueError, match=name):
        Masks(**{name: chance})
    with pytest.raises(ValueError, match="aspect"):
        Masks(aspect=0.9)
    assert Masks(aspect=1.0).aspect == 1
    with pytest.raises(ValueError, match="sum to 1"):
        Masks(random=0.7 + 1e-5)
    assert Masks(random=0.7 + 1e-8).random > 0.7


def test_boxes_have_the_area_and_the_aspect_that_they_should() -> None:
    """Keeps away: sides that are swapped, multiplied or not bounded."""
    sizes = np.array(boxes(Masks(box_area=(0.3, 0.3), aspect=2.0)), float)
    areas, ratios = sizes.prod(1) / 1600, sizes[:, 0] / sizes[:, 1]
    assert np.allclose(areas, 0.3, atol=0.02)
    assert 0.48 < ratios.min() < 0.56
    assert 1.8 < ratios.max() < 2.1
    assert abs(np.log(ratios).mean()) < 0.1, "as often high as wide"
    squares = np.array(boxes(Masks(box_area=(0.25, 0.25), aspect=1.0)))
    assert (squares == 20).all()
    # In a frame that is no square, sides are of the frame's area, not of its sides.
    wide = np.array(boxes(Masks(box_area=(0.25, 0.25), aspect=1.0), 20, 80))
    assert wide.max() <= 20
    assert (wide[:, 0] == 19).all()
    assert (wide[:, 1] == 20).all()


def test_a_box_that_fits_after_some_tries_is_not_cut() -> None:
    """Keeps away: boxes that are cut to the frame at the first try, and so are too small."""
    areas = [h * w / 256 for h, w in boxes(Masks(box_area=(0.5, 0.5), aspect=4.0), 16, 16)]
    assert np.mean(np.isclose(areas, 0.5, atol=0.06)) > 0.97


def test_boxes_reach_every_edge_and_stay_inside() -> None:
    """Keeps away: a box that is never at the last row or column."""
    masks = Masks(box_area=(0.2, 0.2))
    seen = sum(masking.box((6, 6), masks, np.random.default_rng(s)).astype(int) for s in range(300))
    assert np.min(seen) > 0
    assert seen[0, 0] == pytest.approx(seen[-1, -1], rel=0.5)
    tiny = [masking.box((1, 1), masks, np.random.default_rng(s)) for s in range(5)]
    assert all(box.all() for box in tiny)
    small = [masking.box((2, 2), Masks(box_area=(0.9, 0.9)), np.random.default_rng(s))
             for s in range(5)]  # fmt: skip
    assert all(box.sum() == 1 for box in small), "smaller than the frame along each side"


def test_random_masks_keep_a_share_between_the_two() -> None:
    masks = Masks(keep_prob=(0.1, 0.9))
    rng = np.random.default_rng(0)
    shares = [masking.make("random", (4, 14, 14), masks, rng).mean() for _ in range(300)]
    assert 0.05 < min(shares) < 0.2
    assert 0.8 < max(shares) < 0.95
    assert np.mean(shares) == pytest.approx(0.5, abs=0.05)


def test_chances_that_nearly_sum_to_one_are_drawn_from() -> None:
    """Keeps away: a crash after hours, when NumPy finds the chances' sum a hair off."""
    masks = Masks(random=0.7 + 9e-7)
    drawn = {masking.draw((2, 4, 4), masks, np.random.default_rng(s))[0] for s in range(60)}
    assert drawn == {"random", "full", "box_masked", "box_visible"}
    only = Masks(random=0, full=0, box_masked=0, box_visible=0, interior=1)
    assert masking.draw((3, 4, 4), only, np.random.default_rng(0))[0] == "interior"


SHAPE = (4, 14, 14)


seeds = st.integers(0, 10_000).map(np.random.default_rng)


@given(rng=seeds, rows=st.integers(1, 16), columns=st.integers(1, 16))
def test_a_box_is_never_all_nor_nothing(rng: np.random.Generator, rows: int, columns: int) -> None:
    box = masking.box((rows, columns), Masks(), rng)
    assert box.any()
    assert not box.all() or rows == 1 or columns == 1
    at_rows, at_columns = np.nonzero(box)
    whole = box[at_rows.min() : at_rows.max() + 1, at_columns.min() : at_columns.max() + 1]
    assert whole.all(), "a rectangle"


def test_each_mask_masks_what_it_says() -> None:
    rng, masks = np.random.default_rng(0), Masks()
    assert not masking.make("full", SHAPE, masks, rng).any()
    interior = masking.make("interior", SHAPE, masks, rng)
    assert interior[[0, -1]].all()
    assert not interior[1:-1].any()
    for name in ("box_masked", "box_visible"):
        mask = masking.make(name, SHAPE, masks, rng)
        assert (mask == mask[0]).all(), "the same box in all frames"
        edge = np.concatenate((mask[0, 0], mask[0, -1], mask[0, :, 0], mask[0, :, -1]))
        assert (edge.mean() > 0.5) == (name == "box_masked")


def test_masks_come_as_often_as_they_should() -> None:
    rng = np.random.default_rng(1)
    drawn = [masking.draw(SHAPE, Masks(), rng) for _ in range(2000)]
    shares = [np.mean([name == one for name, _ in drawn]) for one in masking.NAMES]
    assert np.allclose(shares, (0.7, 0.1, 0.1, 0.1, 0), atol=0.03)
    visible = np.mean([keep.mean() for name, keep in drawn if name == "random"])
    assert visible == pytest.approx(0.2, abs=0.01)
    # The reference's boxes have a mean area of 0.445.
    areas = [1 - keep.mean() for name, keep in drawn if name == "box_masked"]
    assert np.mean(areas) == pytest.approx(0.445, abs=0.04)


def test_masks_that_do_not_sum_to_one() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        Masks(random=0.5)


@pytest.mark.parametrize(
    ("name", "shares"),
    [("keep_prob", (0.9, 0.1)), ("keep_prob", (5.0, 9.0)), ("box_area", (-1.0, 0.5))],
)
def test_shares_rise_from_0_to_1(name: str, shares: tuple[float, float]) -> None:
    """Keeps away: a mask that shows everything, and a traceback from a loader worker."""
    with pytest.raises(ValueError, match=f"{name} is .* not two rising shares"):
        Masks(**{name: shares})
