"""What the plan says of arithmetic and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep import manifest
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines import estimates

PAIR = ImagePair("x", "train", "0", "change", "before.png", "after.png", ())


def settings(*overrides: str) -> Manifest:
    return manifest.load("synth", [f"interpolate.{value}" for value in overrides], "data")


@pytest.mark.parametrize(
    ("method", "flop"), [("vfiformer", 633.7e9), ("vfiformer-small", 416.6e9), ("rife", 4.02e9)]
)
def test_a_midpoint_at_224_px(method: str, flop: float) -> None:
    """Keeps away: images counted without their padding, frames counted as midpoints."""
    compute = estimates.compute(settings(f"method={method}"), PAIR)
    assert compute is not None
    assert compute.flop == pytest.approx(flop, rel=2e-3)
    assert (compute.midpoints, compute.size) == (7, (224, 224))
    padded = estimates.compute(settings(f"method={method}", "pad_multiple=128", "depth=2"), PAIR)
    assert padded is not None
    assert padded.midpoints == 3
    assert (padded.flop > compute.flop) == (method == "rife")


def test_what_is_not_counted() -> None:
    assert estimates.compute(settings("method=dis"), PAIR) is None
    assert estimates.interpolation_memory(settings("method=dis"), PAIR) is None


def test_memory_grows_with_the_images() -> None:
    one = settings("method=vfiformer")
    assert "about 2.2 GB a worker with vfiformer at 224×224 px" in str(
        estimates.interpolation_memory(one, PAIR)
    )
    large = one.model_copy(update={"image_size": 512})
    assert "about 6.3 GB a worker" in str(estimates.interpolation_memory(large, PAIR))


def test_training_shards_grow_with_the_images(tmp_path: Path) -> None:
    """Keeps away: a job on photographs that ends hours later on a full disk."""
    sides = (256, 1024)
    for side in sides:
        image = Image.fromarray(np.zeros((side, side, 3), np.uint8))
        image.save(tmp_path / f"{side}.png")
    free = manifest.load("synth", ["features.backbone=resnet101"], str(tmp_path))
    free = free.model_copy(update={"image_size": None})
    small, large = (
        estimates.training_bytes(free, replace(PAIR, before=f"{side}.png")) for side in sides
    )
    assert large / small == pytest.approx(16, rel=0.1)
    assert small < estimates.training_bytes(free, None) < large, "of sequences: 512 px"
    fixed = free.model_copy(update={"image_size": 256})
    assert estimates.training_bytes(fixed, replace(PAIR, before="1024.png")) == small


@pytest.mark.parametrize(
    ("pairs", "cores", "text"),
    [
        (1, 0, "39.6 GFLOP a pair, 119 GFLOP for 1 pair"),
        (1, 1, "; about 2 s on a core"),
        (100, 2, "11.9 TFLOP for 100 pairs; about 119 s on 2 cores"),
        (10_000, 2, "1.19 PFLOP for 10,000 pairs; about 3 h on 2 cores"),
        (1_000_000, 4, "119 PFLOP for 1,000,000 pairs; about 7 days on 4 cores"),
        (100_000_000, 4, "11,880 PFLOP for 100,000,000 pairs"),
    ],
)
def test_the_line(pairs: int, cores: int, text: str) -> None:
    line = estimates.Compute("vfiformer", (64, 64), 3, 39.6e9).describe(pairs, cores)
    assert text in line
    assert ("core" in line) == bool(cores)
