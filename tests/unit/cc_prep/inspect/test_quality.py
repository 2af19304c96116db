"""PSNR, SSIM and motion say what they are known to say."""

from __future__ import annotations

import numpy as np
import pytest

from cc_prep.inspect import quality, stats

NOISE = np.random.default_rng(0).integers(0, 246, (64, 64, 3), np.uint8)


def test_psnr() -> None:
    assert quality.psnr(NOISE, NOISE + 10) == pytest.approx(20 * np.log10(255 / 10), abs=1e-4)
    assert quality.psnr(NOISE, NOISE) == quality.EQUAL_PSNR_DB


def test_ssim() -> None:
    assert quality.ssim(NOISE, NOISE) == pytest.approx(1)
    assert quality.ssim(NOISE, NOISE[::-1]) < 0.2


def test_motion_of_a_shift() -> None:
    import cv2

    wide = cv2.GaussianBlur(
        np.random.default_rng(1).integers(0, 256, (96, 140, 3), np.uint8), (0, 0), 3
    )
    assert quality.motion(wide[:, :128], wide[:, 5:133]) == pytest.approx(5, abs=0.7)
    assert quality.motion(wide, wide) == 0


def test_motion_has_one_thread_on_every_machine() -> None:
    """Keeps away: figures of `stats` that differ between machines: DIS divides by threads."""
    import cv2

    before = cv2.getNumThreads()
    try:
        cv2.setNumThreads(4)
        quality.motion(NOISE, NOISE[::-1])
        assert cv2.getNumThreads() == 1
    finally:
        cv2.setNumThreads(before)


def test_against_truth() -> None:
    frames = np.stack([NOISE, NOISE + 10, NOISE])
    measures = stats.against_truth(frames, {1: NOISE})
    assert measures["PSNR"][1] == pytest.approx(28.13, abs=0.01)
    assert stats.against_truth(frames, {}) == {}


def test_a_spread_of_shards_holds_enough() -> None:
    shards = {f"train-{i:06d}": {"samples": 10} for i in range(12)}
    assert len(stats.spread(shards, None)) == 12
    assert stats.spread(shards, 25) == ["train-000000", "train-000005", "train-000010"]
    assert len(stats.spread(shards, 10**6)) == 12
    assert stats.spread({}, 5) == []


def test_histogram() -> None:
    counts = stats.motion_histogram([0.0, 0.3, 3, 50, 1000])
    assert sum(counts.values()) == 5
    assert counts["over 32"] == 2
    assert counts["0–0.25"] == 1
