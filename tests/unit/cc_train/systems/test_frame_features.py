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
