"""Damaged sequences: how much of an image changes, and where to."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cc_train.systems.procap import damage

GREY = np.full((16, 16, 3), 128, np.uint8)


def test_tokens_and_images_are_told_apart() -> None:
    """Keeps away: a colour shift of codebook indices."""
    tokens, images = np.arange(8).reshape(4, 2), np.stack([GREY] * 4)
    tokens_seen, changed = Counter[bool](), Counter[str]()
    for seed in range(400):
        rng = np.random.default_rng(seed)
        damaged = damage.damage(tokens, tokens + 100, rng).of(tokens)
        tokens_seen[bool((damaged >= 100).any())] += 1
        damaged = damage.damage(images, images // 2, np.random.default_rng(seed)).of(images)
        values = damaged[(damaged != 128).any(axis=(1, 2, 3))]
        if not len(values):  # all frames are alike: a shuffle, or a warp of one colour
            changed["none"] += 1
        else:
            changed["swap" if (values == 64).all() else "colour"] += 1
    assert min(tokens_seen.values()) > 150
    assert 65 < changed["swap"] < 135
    assert 65 < changed["colour"] < 135


def test_any_frame_may_be_replaced_by_any() -> None:
    own, other = np.arange(4)[:, None], 100 + np.arange(3)[:, None]
    places, values = Counter[int](), Counter[int]()
    for seed in range(300):
        swapped = damage.swap(own, other, np.random.default_rng(seed)).of(own)[:, 0]
        [place] = np.flatnonzero(swapped >= 100)
        places[int(place)] += 1
        values[int(swapped[place])] += 1
    assert min(places[i] for i in range(4)) > 40
    assert min(values[i] for i in (100, 101, 102)) > 60


def test_every_other_order_is_as_likely() -> None:
    orders = Counter(
        tuple(damage.shuffle(np.arange(3), np.random.default_rng(s)).order.tolist())
        for s in range(1000)
    )
    assert len(orders) == 5
    assert min(orders.values()) > 150


def test_colours_shift_by_up_to_half_the_range() -> None:
    """Keeps away: a shift that wraps around, of the wrong channels, or of another size."""
    channels, shifts = Counter[tuple[bool, ...]](), []
    for seed in range(400):
        shift = damage.shift_colour(GREY, np.random.default_rng(seed)).astype(int) - 128
        assert (shift == shift[0, 0]).all()
        touched = shift[0, 0] != 0
        assert len(set(shift[0, 0][touched].tolist())) <= 1
        channels[tuple(touched.tolist())] += 1
        shifts.append(int(shift[0, 0].sum()) // max(1, int(touched.sum())))
    one = [tuple(i == j for j in range(3)) for i in range(3)]
    assert min(channels[c] for c in (*one, (True, True, True))) > 60
    assert -129 < min(shifts) < -115
    assert 115 < max(shifts) < 129
    assert abs(np.mean(shifts)) < 12
    for value in (0, 255):
        image = np.full((2, 2, 3), value, np.uint8)
        shifted = [damage.shift_colour(image, np.random.default_rng(s)) for s in range(60)]
        far = min(255 - f.min() for f in shifted) if value else max(f.max() for f in shifted)
        assert far <= 128, "what leaves the range is cut"
        assert np.abs(np.stack(shifted).astype(int) - value).max() <= 128


def middle(image: np.ndarray) -> tuple[float, float]:
    """Where the brightness of an image has its middle, from −1 to 1: (y, x)."""
    values = image[..., 0].astype(float)
    places = (np.arange(len(values)) + 0.5) / len(values) * 2 - 1
    return (
        float((values.sum(1) * places).sum() / values.sum()),
        float((values.sum(0) * places).sum() / values.sum()),
    )


def spot(y: int, x: int, size: int = 64) -> np.ndarray:
    image = np.zeros((size, size, 3), np.uint8)
    image[y - 3 : y + 3, x - 3 : x + 3] = 255
    return image


def warped(image: np.ndarray, matrix: torch.Tensor) -> np.ndarray:
    pixels = torch.tensor(image).permute(2, 0, 1)[None].float()
    warped_image: np.ndarray = (
        damage.warp_by(pixels, matrix)[0].permute(1, 2, 0).round().byte().numpy()
    )
    return warped_image


def test_a_matrix_says_where_a_place_is_taken_from() -> None:
    """Keeps away: shifts along the other axis, turns the other way, scales that are swapped."""
    y, x = middle(warped(spot(32, 32), damage.affine(0, 0.25, 0, 1)))
    assert (y, x) == pytest.approx((0, -0.25), abs=0.02)
    y, x = middle(warped(spot(32, 32), damage.affine(0, 0, 0.25, 1)))
    assert (y, x) == pytest.approx((-0.25, 0), abs=0.02)
    y, x = middle(warped(spot(32, 40), damage.affine(0, 0, 0, 0.5)))
    assert (y, x) == pytest.approx((0, 0.5), abs=0.02), "taken from half as far"
    turn = damage.affine(math.pi / 2, 0, 0, 1)
    assert torch.allclose(turn, torch.tensor([[[0.0, -1, 0], [1, 0, 0]]]), atol=1e-6)
    y, x = middle(warped(spot(32, 48), turn))
    assert (y, x) == pytest.approx((-0.5, 0), abs=0.02)


def test_warps_stay_within_their_limits() -> None:
    """Keeps away: a turn, a shift or a scale beyond what the reference does."""
    centre = np.array([middle(damage.warp(spot(32, 32), np.random.default_rng(s)))
                       for s in range(200)])  # fmt: skip
    # The middle is taken from (dx, dy): it moves by as much, turned and scaled.
    moved = np.hypot(*centre.T)
    assert 0.11 < moved.max() < 0.17
    assert np.abs(centre.mean(0)).max() < 0.02
    # Two spots: the line between them turns, and its length is scaled.
    lines = []
    for seed in range(200):
        ends = [middle(damage.warp(spot(32, x), np.random.default_rng(seed))) for x in (24, 40)]
        lines.append((ends[1][0] - ends[0][0], ends[1][1] - ends[0][1]))
    y, x = np.array(lines).T
    angles, lengths = np.degrees(np.arctan2(y, x)), np.hypot(y, x) / 0.5
    assert 27 < angles.max() < 31
    assert -31 < angles.min() < -27
    assert 0.88 < lengths.min() < 0.94
    assert 1.07 < lengths.max() < 1.14


def test_what_comes_in_is_the_reflection() -> None:
    """Keeps away: black corners, by which a damaged frame is told without looking at it."""
    white = np.full((16, 16, 3), 255, np.uint8)
    for seed in range(10):
        assert (damage.warp(white, np.random.default_rng(seed)) == 255).all()


seeds = st.integers(0, 10_000).map(np.random.default_rng)


@given(rng=seeds, count=st.integers(2, 6))
def test_a_shuffle_is_never_the_true_order(rng: np.random.Generator, count: int) -> None:
    order = damage.shuffle(np.arange(count), rng).order
    assert sorted(order) == list(range(count))
    assert list(order) != list(range(count))


def test_damage_of_tokens_is_swap_or_shuffle() -> None:
    own, other = np.arange(12).reshape(4, 3), 100 + np.arange(12).reshape(4, 3)
    original = own.copy()
    swaps = 0
    for seed in range(200):
        damaged = damage.damage(own, other, np.random.default_rng(seed)).of(own)
        foreign = (damaged >= 100).all(axis=1).sum()
        swaps += int(foreign)
        assert foreign == 1 or sorted(map(tuple, damaged)) == sorted(map(tuple, own))
    assert (own == original).all(), "the true sequence stays as it was"
    assert 70 < swaps < 130


def test_features_are_damaged_as_tokens_are() -> None:
    """Keeps away: a colour shift or a warp of features, and frames that are mixed within."""
    own = np.random.default_rng(0).normal(size=(4, 3, 2, 2)).astype(np.float16)
    other = own + 100
    numbers = np.arange(4)[:, None]
    for seed in range(100):
        damaged = damage.damage(own, other, np.random.default_rng(seed)).of(own)
        drawn = damage.damage(numbers, 100 + numbers, np.random.default_rng(seed))
        rows = drawn.of(numbers)[:, 0]
        expected = [other[row - 100] if row >= 100 else own[row] for row in rows]
        assert damaged.dtype == np.float16
        assert (damaged == np.stack(expected)).all()


def test_damage_of_images_touches_one_frame() -> None:
    own = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    for seed in range(40):
        damaged = damage.damage(own, own, np.random.default_rng(seed)).of(own)
        assert damaged.dtype == np.uint8
        changed = [not (a == b).all() for a, b in zip(own, damaged, strict=True)]
        assert sum(changed) <= 1 or sorted(map(bytes, own)) == sorted(map(bytes, damaged))


def test_no_turn_and_no_shift_leave_the_image() -> None:
    image = torch.rand(1, 3, 9, 9)
    assert torch.allclose(damage.warp_by(image, damage.affine(0, 0, 0, 1)), image, atol=1e-5)
