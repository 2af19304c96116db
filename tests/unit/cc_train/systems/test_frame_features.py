"""The frozen networks before the encoder: the same features wherever they are asked for."""

from __future__ import annotations

import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.models.backbones import Latents
from cc_prep.models.vqgan import VQGAN, Config
from cc_train.data.collate import Reads
from cc_train.layers.feature_grid import Pooling
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.systems.procap.frame_features import (
    BackboneFeatures,
    FrameFeatures,
    as_input,
)


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
@pytest.mark.parametrize("cache_mb", [0, 1])
def test_features_are_the_same_under_autocast(kind: Reads, cache_mb: int) -> None:
    """Keeps away: other features in training than in validation; and, from the cache, ones that
    depend on who has asked for an image first."""
    torch.manual_seed(0)
    config = Config(channels=32, multipliers=(1, 2), latent=8, codes=64, code_width=8)
    vqgan = VQGAN(config)
    images = torch.rand(1, 3, 3, 16, 16)
    plain, other = (FrameFeatures(vqgan, kind, cache_mb=cache_mb) for _ in range(2))
    expected, indices = plain(images), plain.indices(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(other(images), expected)
        assert torch.equal(other.indices(images), indices)
    assert torch.equal(other(images), expected)


@pytest.fixture
def vqgan() -> VQGAN:
    torch.manual_seed(1)
    return VQGAN(
        Config(channels=32, multipliers=(1, 2), blocks=1, latent=8, codes=16, code_width=8)
    )


def images(count: int) -> torch.Tensor:
    return torch.rand(1, count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def test_kept_features_are_those_of_each_image_alone(vqgan: VQGAN) -> None:
    plain, keeping = FrameFeatures(vqgan, "pixels"), FrameFeatures(vqgan, "pixels", cache_mb=1)
    frames = images(5)
    first = keeping(frames)
    alone = torch.stack([plain(frames[:, i : i + 1])[0, 0] for i in range(5)])[None]
    assert torch.equal(first, alone)
    assert torch.allclose(first, plain(frames), atol=1e-5)
    # In another order and another batch: the same bits, which is what a resumed run needs.
    order = [3, 0, 4]
    assert torch.equal(keeping(frames[:, order]), first[:, order])
    fresh = FrameFeatures(vqgan, "pixels", cache_mb=1)
    assert torch.equal(fresh(frames[:, order]), first[:, order])


@pytest.mark.parametrize("quirks", [False, True])
def test_images_go_into_the_encoder_as_they_are_or_as_the_reference_has_them(
    vqgan: VQGAN, quirks: bool
) -> None:
    """Keeps away: published figures that cannot be met, and the quirk in all other runs."""
    frames = images(2)
    encode = vqgan.encoder if quirks else vqgan.features
    expected = encode(frames[0]).flatten(2).mT
    assert torch.allclose(FrameFeatures(vqgan, "pixels", quirks)(frames)[0], expected, atol=1e-5)


def test_stored_images_become_numbers_from_0_to_1() -> None:
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8).expand(1, 2, 4, 5, 3)
    assert as_input(pixels).shape == (1, 2, 3, 4, 5)
    assert torch.equal(as_input(pixels)[0, 1, :, 3, 4], torch.tensor([0, 0.2, 1]))


def test_kept_features_are_not_computed_again(
    vqgan: VQGAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = FrameFeatures(vqgan, "pixels", cache_mb=1)
    frames = images(5)
    first = keeping(frames)
    monkeypatch.setattr(keeping.vqgan, "features", lambda images: pytest.fail("encoded again"))
    assert torch.equal(keeping(frames), first)


def test_kept_features_can_be_compiled_around(vqgan: VQGAN) -> None:
    features = FrameFeatures(vqgan, "pixels", cache_mb=1)
    compiled = torch.compile(lambda x: features(x) + 1, backend="eager")(images(3))
    expected = FrameFeatures(vqgan, "pixels")(images(3))
    assert torch.allclose(compiled - 1, expected, atol=1e-5)


def test_the_cache_stays_under_its_size(vqgan: VQGAN) -> None:
    keeping = FrameFeatures(vqgan, "pixels", cache_mb=1)
    [one] = keeping(images(1))[0]
    keeping.cache_mb = 20.5 * one.nbytes / 1e6  # type: ignore[assignment]
    for count in (7, 9, 11, 5):
        keeping(images(count))
        assert len(keeping._cache) <= 20
    assert len(keeping._cache) == 20


def backbone(vqgan: VQGAN, pooling: Pooling = "unshuffle") -> BackboneFeatures:
    """Features of 8 channels on 8 × 8, for images of 16 px; 4 × 4 tokens."""
    spec = BackboneSpec("vqgan", "0" * 64, (8, 8, 8))
    return BackboneFeatures(FrozenBackbone(Latents(vqgan), spec), (4, 4), pooling)


def test_stored_features_are_those_of_the_images(vqgan: VQGAN) -> None:
    """Keeps away: captions of images that are not those of the shards' features."""
    features = FrameFeatures(vqgan, "features", backbone=backbone(vqgan))
    frames = images(3)
    stored = torch.cat([vqgan.features(frame[None]) for frame in frames[0]])[None].half()
    assert stored.shape == (1, 3, 8, 8, 8)
    seen = features(as_input(stored))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(features(frames), seen)
    assert (seen.shape, seen.dtype) == ((1, 3, 16, 32), torch.float32)
    assert (features.channels, features.source) == (32, ("vqgan", "0" * 64))
    # The token in the second row and third column, its eight channels of 2 × 2 places.
    expected = stored[:, :, :, 2:4, 4:6].float().flatten(2)
    assert torch.equal(seen[:, :, 1 * 4 + 2], expected)


def test_pooled_features_have_the_backbone_s_channels(vqgan: VQGAN) -> None:
    features = FrameFeatures(vqgan, "features", backbone=backbone(vqgan, "mean"))
    assert features.channels == 8
    assert features(images(2)).shape == (1, 2, 16, 8)


def test_features_of_another_size_are_refused(vqgan: VQGAN) -> None:
    features = FrameFeatures(vqgan, "features", backbone=backbone(vqgan))
    with pytest.raises(UserError, match="one image_size"):
        features(torch.zeros(1, 2, 8, 12, 12, dtype=torch.float16))
    odd = FrozenBackbone(Latents(vqgan), BackboneSpec("vqgan", "0" * 64, (8, 9, 8)))
    with pytest.raises(UserError, match="no whole multiple of the 4 × 4 tokens"):
        BackboneFeatures(odd, (4, 4), "unshuffle")


def test_frozen_networks_never_train(vqgan: VQGAN) -> None:
    features = FrameFeatures(vqgan, "features", backbone=backbone(vqgan)).train()
    assert not any(p.requires_grad for p in features.parameters())
    assert not any(module.training for module in features.modules())
