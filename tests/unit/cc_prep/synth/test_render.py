"""Images against their masks and labels, and the light paths that a pixel gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.synth import masks, render, scenes
from tests import commands


def sampled(seed: int, change: str, jitter: float = 1.0) -> scenes.Scene | None:
    return scenes.sample(np.random.default_rng(seed), seed, change, jitter)


@pytest.mark.parametrize("change", scenes.CHANGE_TYPES)
def test_the_image_changes_within_its_mask(change: str) -> None:
    """Keeps away: a mask that is mirrored, transposed or shifted against its image."""
    size = 64
    tries = (sampled(seed, change, jitter=0.0) for seed in range(100))
    scene, seen = next((s, m) for s in tries if s and (m := masks.visible_change(s, size)))
    # With one seed both images have the same noise where nothing changed.
    before, after = (render.image(m, size, 16, seed=1).astype(int) for m in scene.moments[:2])
    difference = np.abs(after - before).max(axis=2)
    mask = seen[0]
    strongest = difference >= np.sort(difference, axis=None)[-mask.sum()]

    def share_within(other: np.ndarray) -> float:
        return float((strongest & other).sum() / strongest.sum())

    assert difference[mask].mean() > 5 * difference[~mask].mean()
    assert share_within(mask) > 0.75
    shifted = [np.roll(mask, by, axis) for by in (-4, 4) for axis in (0, 1)]
    for wrong in (mask[::-1], mask[:, ::-1], mask.T, *shifted):
        assert share_within(wrong) < share_within(mask) - 0.1


def test_each_label_is_that_of_a_point_of_its_pixel() -> None:
    """Keeps away: labels beside their pixels, and other masks than those that are stored."""
    size, fine = 64, 8
    scene = sampled(4, "move")
    assert scene is not None
    labels = render.object_map(scene.moments[0], size)
    points = render.object_map(scene.moments[0], size * fine).reshape(size, fine, size, fine)
    same = points == labels[:, None, :, None]
    assert same.any(axis=(1, 3)).mean() > 0.999
    assert not same[:, fine // 2, :, fine // 2].all(), "the points are random, no centres"
    beside = np.roll(points, 1, axis=2) == labels[:, None, :, None]
    assert beside.any(axis=(1, 3)).mean() < 0.995


@given(st.integers(1, 4096))
def test_the_number_of_light_paths_is_the_renderers(samples: int) -> None:
    paths = scenes.light_paths(samples)
    sampler = render.mi.load_dict({"type": "multijitter", "sample_count": samples})
    assert sampler.sample_count() == paths
    assert scenes.light_paths(paths) == paths >= samples


def test_light_paths_that_are_rounded_up_are_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: images with more light paths than asked for, and a warning at each of them."""
    arguments = ("--scenes", 1, "--size", 32, "--workers", 1, "--samples")
    done = commands.cc_prep("synth", tmp_path / "five", *arguments, 5)
    assert done.returncode == 0, done.stderr
    assert "--samples 5: rounded up to 6\n" in done.stderr
    assert "ampler" not in "".join(capfd.readouterr()), "the renderers say nothing of it"
