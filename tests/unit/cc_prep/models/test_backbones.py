"""Backbones: where each channel comes from, and that a packed one is rebuilt bit for bit."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cc_prep import manifest, weights
from cc_prep.errors import UserError
from cc_prep.models import backbones
from cc_prep.models.efficientnet import EfficientNetLite0
from cc_prep.models.nanodet import NanoDet
from cc_prep.weights import networks
from pipelines import estimates


def test_the_pyramid_holds_three_levels_at_their_places() -> None:
    backbone, located = networks.backbone("efficientnet-lite0")
    images = torch.rand(2, 3, 48, 64)
    features = backbone(images)
    assert features.shape == (2, backbone.channels, 6, 8) == (2, 248, 6, 8)
    whole = EfficientNetLite0.from_tensors(weights.read_tensors(located.path))
    _, fine, middle, coarse = whole.levels(images)
    # Each 2×2 of the fine level is four channels of one place.
    assert torch.equal(features[:, 5, 3, 4], fine[:, 1, 3 * 2, 4 * 2 + 1])
    assert torch.equal(features[:, 96:136], middle)
    assert torch.equal(features[:, 136:, 3, 4], coarse[:, :, 1, 2])


def test_the_enlarged_pyramid_sees_twice_the_image_on_the_same_grid() -> None:
    backbone, located = networks.backbone("efficientnet-lite0-x2")
    images = torch.rand(2, 3, 40, 56)  # multiples of 8 px alone
    features = backbone(images)
    assert features.shape == (2, backbone.channels, 5, 7) == (2, 272, 5, 7)
    whole = EfficientNetLite0.from_tensors(weights.read_tensors(located.path))
    twice = F.interpolate(images, size=(80, 112), mode="bicubic").clamp(0, 1)
    _, _, middle, coarse = whole.levels(twice)
    assert backbones.folded(backbone) == 160
    assert torch.equal(features[:, 5, 3, 4], middle[:, 1, 3 * 2, 4 * 2 + 1])
    assert torch.equal(features[:, 160:], coarse)


def test_the_detector_shows_what_its_heads_see() -> None:
    """Keeps away: features of levels before the path aggregation, or at the wrong places."""
    backbone, located = networks.backbone("nanodet")
    images = torch.rand(2, 3, 32, 48)
    features = backbone(images)
    assert features.shape == (2, backbone.channels, 4, 6) == (2, 384, 4, 6)
    whole = NanoDet.from_tensors(weights.read_tensors(located.path))
    twice = F.interpolate(images, size=(64, 96), mode="bicubic").clamp(0, 1)
    fine, middle, coarse = whole.levels(twice)
    seen = whole.heads[1](middle).flatten(2).transpose(1, 2)
    assert torch.equal(whole.outputs(twice)[1], seen)
    squares = fine[:, 7, 4:6, 2:4].mean((1, 2))
    assert torch.allclose(features[:, 7, 2, 1], squares, atol=1e-6)
    assert torch.equal(features[:, 128:256], middle)
    assert torch.equal(features[:, 256:, 3, 4], coarse[:, :, 1, 2])
    assert sum(tensor.numel() for tensor in backbone.state_dict().values()) < 3_300_000


def test_joined_backbones_share_the_grid_of_the_first() -> None:
    joined, located = networks.backbone("efficientnet-lite0+nanodet+vqgan")
    images = torch.rand(1, 3, 64, 64)
    parts = [networks.backbone(n) for n in ("efficientnet-lite0", "nanodet", "vqgan")]
    first, second, third = (network(images) for network, _ in parts)
    features = joined(images)
    assert features.shape[1] == sum(one.shape[1] for one in (first, second, third))
    assert torch.equal(features[:, :248], first)
    assert torch.equal(features[:, 248 : 248 + 384], second)
    assert features.shape[2:] == first.shape[2:] != third.shape[2:]
    assert backbones.folded(joined) == backbones.folded(parts[0][0]) == 96
    assert located.sha256 not in {one.sha256 for _, one in parts}
    with pytest.raises(UserError, match="takes the weights"):
        networks.backbone("efficientnet-lite0+nanodet", "vqgan-mini")


@pytest.mark.parametrize("name", ["none+nanodet", "nanodet+", "nanodet+x", "+"])
def test_only_known_backbones_are_joined(name: str) -> None:
    with pytest.raises(ValueError, match="a\\+b"):
        manifest.Features(backbone=name)
    assert manifest.Features(backbone="vqgan+nanodet").backbone == "vqgan+nanodet"


def test_the_manifest_names_every_backbone() -> None:
    assert ("none", *backbones.BACKBONES) == manifest.BACKBONES
    assert tuple(estimates.FEATURE_SHARE) == manifest.BACKBONES


@pytest.mark.parametrize(
    "name",
    [
        "efficientnet-lite0",
        "efficientnet-lite0-x2",
        "vqgan",
        "nanodet",
        "efficientnet-lite0-x2+nanodet",
        "nanodet+vqgan",
    ],
)
def test_a_backbone_is_rebuilt_from_its_own_tensors(name: str) -> None:
    backbone, _ = networks.backbone(name)
    side = 2 * backbones.multiple(name, backbone)
    images = torch.rand(1, 3, side, side)
    again = backbones.rebuild(name, backbone.state_dict())
    assert torch.equal(again(images), backbone(images))
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_an_unknown_backbone_is_named() -> None:
    """Keeps away: a captioner of a later version that is refused as a damaged VQGAN."""
    with pytest.raises(UserError, match=r"^this version knows no backbone efficientnet-lite0-x4\."):
        backbones.rebuild("efficientnet-lite0-x4", {})


def test_only_what_takes_part_is_shipped() -> None:
    backbone, _ = networks.backbone("efficientnet-lite0")
    assert sum(parameter.numel() for parameter in backbone.parameters()) < 750_000


def test_a_backbone_without_weights_says_what_to_give() -> None:
    with pytest.raises(UserError, match="resnet101 comes without weights"):
        networks.backbone("resnet101")
