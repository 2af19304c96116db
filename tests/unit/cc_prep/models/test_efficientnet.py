"""EfficientNet-Lite0 with its real weights, and the distances and fidelity built on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.inspect import fidelity
from cc_prep.models.efficientnet import CHANNELS, EfficientNetLite0
from cc_train.systems.vqgan import perceptual

PLACES = [113, 455, 576, 659, 838, 1244]
RECORDED = [4.19442, 3.43044, 5.04231, 3.38748, 3.2128, 4.35301]


@pytest.fixture(scope="module")
def network() -> EfficientNetLite0:
    located = weights.locate("efficientnet-lite0")
    return EfficientNetLite0.from_tensors(weights.read_tensors(located.path))


def test_the_package_s_values(network: EfficientNetLite0) -> None:
    """Recorded from `efficientnet-lite-pytorch` 0.1.0, with which all 2,560 values were equal."""
    pattern = ((torch.arange(3 * 224 * 224) * 7919) % 251 / 251).view(1, 3, 224, 224)
    assert network.pooled(pattern)[0, PLACES].tolist() == pytest.approx(RECORDED, abs=1e-3)


def test_levels(network: EfficientNetLite0) -> None:
    levels = network.levels(torch.rand(2, 3, 64, 96))
    assert [tuple(x.shape) for x in levels] == [
        (2, c, 64 // 2 ** (i + 1), 96 // 2 ** (i + 1)) for i, c in enumerate(CHANNELS)
    ]
    assert not any(p.requires_grad for p in network.parameters())


def test_other_weights_are_refused() -> None:
    with pytest.raises(UserError, match="EfficientNet"):
        EfficientNetLite0.from_tensors({"a": torch.zeros(1)})


def test_distance_grows_with_damage() -> None:
    distance = perceptual.make("efficientnet-lite0")
    assert distance is not None
    image = torch.rand(1, 3, 64, 64)
    distances = [distance(image, (image + a * torch.randn(1, 3, 64, 64)).clamp(0, 1)).item()
             for a in (0.0, 0.05, 0.5)]  # fmt: skip
    assert distances[0] == pytest.approx(0, abs=1e-6)
    assert distances[0] < distances[1] < distances[2]


def test_fidelity_tells_sets_apart() -> None:
    rng = np.random.default_rng(0)
    smooth = [np.full((64, 64, 3), rng.integers(0, 256, 3), np.uint8) for _ in range(24)]
    noise = [rng.integers(0, 256, (64, 64, 3), np.uint8) for _ in range(24)]
    mixed = [np.full((48 + i, 64, 3), 7 * i, np.uint8) for i in range(24)]
    same, other = fidelity.measure(mixed, mixed, None), fidelity.measure(noise, smooth, None)
    assert same["images"] == 24
    assert same["FID"] == pytest.approx(0, abs=1e-2)
    assert (same["precision"], same["recall"]) == (1, 1)
    assert other["FID"] > 10
    assert other["precision"] < 0.5
    with pytest.raises(UserError, match="no such file"):
        fidelity.measure(smooth, smooth, "nowhere.pth")
