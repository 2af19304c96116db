"""The backbone of the shards' features: the right weights, and the same features as in shards."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features
from cc_prep.steps.features import FeatureExtractor
from cc_prep.weights import networks
from cc_train.layers import frozen_backbone
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.sharing import export
from tests import weight_factory

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return weight_factory.write_vqgan(tmp_path / "backbone.safetensors")


def extracted(file: Path) -> Features:
    network, located = networks.backbone("vqgan", str(file))
    return FeatureExtractor("vqgan", network, located)(IMAGES, range(3))


def test_what_is_computed_is_what_is_stored(tmp_path: Path, file: Path) -> None:
    """Keeps away: other captions of images than of their stored features; also after packing."""
    stored = extracted(file)
    spec = BackboneSpec.of(stored)
    frozen = frozen_backbone.find(spec, str(file))
    (tmp_path / "run").mkdir()
    for name, content in frozen.files().items():
        (tmp_path / "run" / name).write_bytes(content)
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
    for backbone in (frozen, frozen_backbone.read(tmp_path / "run", spec)):
        with torch.autocast("cpu", torch.bfloat16):
            features = backbone.compute(pixels)
        assert features.dtype == torch.float16
        assert np.array_equal(features.numpy(), stored.values)


def test_other_weights_are_refused(tmp_path: Path, file: Path) -> None:
    spec = BackboneSpec.of(extracted(file))
    assert spec.grid == (8, 4, 4)
    other = weight_factory.write_vqgan(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(UserError, match="Set backbone_weights to the file"):
        frozen_backbone.find(spec, str(other))
    with pytest.raises(UserError, match="vqgan-mini"):
        frozen_backbone.find(spec, None)
    with pytest.raises(UserError, match="resnet101"):
        frozen_backbone.find(replace(spec, name="resnet101"), None)
    with pytest.raises(UserError, match="features of theirs, which is no backbone of ours"):
        frozen_backbone.find(replace(spec, name="theirs"), None)


def test_a_run_without_its_backbone_says_so(tmp_path: Path, file: Path) -> None:
    with pytest.raises(UserError, match="not there"):
        frozen_backbone.read(tmp_path / "run", BackboneSpec("vqgan", None, (8, 4, 4)))
    with pytest.raises(UserError, match="not the weights of resnet101"):
        frozen_backbone.read(tmp_path, BackboneSpec("resnet101", None, (1024, 1, 1)))


def test_features_of_another_grid_are_refused_and_others_stay_as_they_are() -> None:
    """Keeps away: an error about tensor sizes deep in a network, for shards of another image size
    or backbone; and stored features that are computed again."""
    backbone = FrozenBackbone(None, BackboneSpec("vqgan", None, (8, 4, 4)))
    stored = torch.randn(2, 2, 8, 4, 4).half()
    assert torch.equal(backbone(stored), stored.float())
    with pytest.raises(UserError, match=r"of the shape \[8, 5, 5\], where those of \[8, 4, 4\]"):
        backbone(torch.zeros(1, 2, 8, 5, 5))
    with pytest.raises(UserError, match="no weights of vqgan for images"):
        backbone(torch.zeros(1, 2, 16, 16, 3, dtype=torch.uint8))


def test_a_spec_in_a_run_s_settings_is_read_as_it_was_written() -> None:
    """Keeps away: settings that change although the features are the same."""
    for precision in ("float16", "float32"):
        value = {"name": "vqgan", "sha256": "ab" * 32, "grid": [8, 4, 4], "precision": precision}
        assert BackboneSpec.of_json({**value, "tokens": [2, 2]}).to_json() == value
    spec = BackboneSpec("vqgan", "ab" * 32, (8, 4, 4))
    assert spec.matches(replace(spec, sha256=None))
    assert not spec.matches(replace(spec, sha256="cd" * 32))
    assert not spec.matches(replace(spec, grid=(8, 5, 5)))
    assert str(spec) == "vqgan (SHA-256 abababababab…, 8 × 4 × 4, float16)"


def library_features(folder: Path, layers: tuple[int, ...] = (-1, 1)) -> Features:
    backbone, located = networks.backbone("hf:", str(folder), layers, (42, 56))
    return FeatureExtractor("hf:", backbone, located)(IMAGES, range(3))


def test_a_library_s_backbone_is_kept_in_the_run(tmp_path: Path) -> None:
    """Keeps away: a captioner that needs the folder, or reads other layers of images than of
    shards, or of a resized image another size."""
    weight_factory.write_backbone(tmp_path / "dinov2", "dinov2")
    stored = library_features(tmp_path / "dinov2")
    meta = json.loads(json.dumps(stored.meta()))
    assert meta["backbone"] == "hf:dinov2"
    assert meta["preprocessing"] == {
        "layers": [-1, 1], "input_size": [42, 56],
        "mean": list(weight_factory.MEAN), "std": list(weight_factory.STD),
    }  # fmt: skip
    spec = BackboneSpec.of_json(json.loads(json.dumps(BackboneSpec.of(stored).to_json())))
    assert spec == BackboneSpec.of(stored)
    assert spec.grid == (64, 3, 4)
    frozen = frozen_backbone.find(spec, str(tmp_path / "dinov2"))
    for run in ("run", "export"):
        (tmp_path / run).mkdir()
    (tmp_path / "run" / frozen_backbone.FILE).write_bytes(frozen.files()[frozen_backbone.FILE])
    shutil.rmtree(tmp_path / "dinov2")
    export._copy_small(*(tmp_path / run / frozen_backbone.FILE for run in ("run", "export")))
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float() / 255
    features = frozen_backbone.read(tmp_path / "run", spec).compute(pixels).numpy()
    assert np.array_equal(features, stored.values)
    halved = frozen_backbone.read(tmp_path / "export", spec).compute(pixels).numpy()
    np.testing.assert_allclose(halved, stored.values, atol=0.05)


def test_another_preprocessing_of_the_same_weights_is_another_backbone(tmp_path: Path) -> None:
    """Keeps away: features of two layers in one training."""
    weight_factory.write_backbone(tmp_path, "dinov2")
    first, second = (library_features(tmp_path, layers) for layers in ((1, 2), (1, 3)))
    one, other = BackboneSpec.of(first), BackboneSpec.of(second)
    assert one.grid == other.grid
    assert one.sha256 != other.sha256
    with pytest.raises(UserError, match="Set backbone_weights to the file or folder"):
        frozen_backbone.find(one, None)
    config = tmp_path / "preprocessor_config.json"
    config.write_text(config.read_text().replace("0.25", "0.26"))
    with pytest.raises(UserError, match="features of other weights of hf:dinov2"):
        frozen_backbone.find(one, str(tmp_path))
