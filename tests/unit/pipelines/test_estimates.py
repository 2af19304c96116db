"""What the plan says of bytes and memory."""

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


def test_the_memory_of_other_methods_is_not_known_by_size() -> None:
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
