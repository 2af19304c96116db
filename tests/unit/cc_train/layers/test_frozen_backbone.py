"""The backbone of the shards' features: the right weights, and the same features as in shards."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features
from cc_prep.steps.features import FeatureExtractor
from cc_prep.weights import networks
from cc_train.layers import frozen_backbone
from tests import small_weights

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return small_weights.write_vqgan(tmp_path / "backbone.safetensors")


def extracted(file: Path) -> Features:
    network, located = networks.backbone("vqgan", str(file))
    return FeatureExtractor("vqgan", network, located)(IMAGES, range(3))


def test_what_is_computed_is_what_is_stored(tmp_path: Path, file: Path) -> None:
    """Keeps away: other captions of images than of their stored features; also after packing."""
    stored = extracted(file)
    known = frozen_backbone.about(stored)
    frozen = frozen_backbone.find(known, str(file))
    (tmp_path / "run").mkdir()
    for name, content in frozen_backbone.files(frozen).items():
        (tmp_path / "run" / name).write_bytes(content)
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
    for network in (frozen, frozen_backbone.read(tmp_path / "run", "vqgan")):
        with torch.autocast("cpu", torch.bfloat16):
            features = frozen_backbone.compute(network, known, pixels)
        assert features.dtype == torch.float16
        assert np.array_equal(features.numpy(), stored.values)


def test_other_weights_are_refused(tmp_path: Path, file: Path) -> None:
    known = frozen_backbone.about(extracted(file))
    assert known["grid"] == [8, 4, 4]
    other = small_weights.write_vqgan(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(UserError, match="Set backbone_weights to the file"):
        frozen_backbone.find(known, str(other))
    with pytest.raises(UserError, match="vqgan-mini"):
        frozen_backbone.find(known, None)
    with pytest.raises(UserError, match="resnet101 comes without weights"):
        frozen_backbone.find({**known, "name": "resnet101"}, None)
    with pytest.raises(UserError, match="features of theirs, which is no backbone of ours"):
        frozen_backbone.find({**known, "name": "theirs"}, None)


def test_a_run_without_its_backbone_says_so(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UserError, match="not there"):
        frozen_backbone.read(tmp_path / "run", "vqgan")
    with pytest.raises(UserError, match="not the weights of resnet101"):
        frozen_backbone.read(tmp_path, "resnet101")
