"""The frozen VQGAN before the encoder: the same features wherever they are asked for."""

from __future__ import annotations

import pytest
import torch

from cc_prep.models.vqgan import VQGAN, Config
from cc_train.systems.procap.frame_features import FrameFeatures, Kind


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
@pytest.mark.parametrize("cache_mb", [0, 1])
def test_features_are_the_same_under_autocast(kind: Kind, cache_mb: int) -> None:
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
