"""The perceptual distance of the VQGAN's training, with an untrained EfficientNet-Lite0."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cc_prep.models.efficientnet import EfficientNetLite0
from cc_train.systems.vqgan.perceptual import FeatureDistance


@pytest.fixture(scope="module")
def backbone() -> EfficientNetLite0:
    torch.manual_seed(0)
    return EfficientNetLite0().requires_grad_(False).eval()


def images(seed: int, side: int = 32) -> Tensor:
    return torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_the_distance_is_that_of_normalised_features(backbone: EfficientNetLite0) -> None:
    """Keeps away: another distance of two images than of the same two in one batch."""
    one, other = images(0).requires_grad_(), images(1)
    distance = FeatureDistance(backbone)(one, other)
    means = []
    for level in backbone.levels(torch.cat((one, other))):
        first, second = (level / level.norm(dim=1, keepdim=True)).chunk(2)
        means.append((first - second).square().sum(1).mean())
    torch.testing.assert_close(distance, torch.stack(means).mean())
    distance.backward()
    assert one.grad is not None
    assert one.grad.abs().sum() > 0
    assert FeatureDistance(backbone)(other, other).item() == 0


def test_it_may_see_images_at_twice_their_size(backbone: EfficientNetLite0) -> None:
    """Keeps away: a setting that changes nothing, or images beyond the range of their values."""
    seen: list[Tensor] = []
    levels = backbone.levels
    distance = FeatureDistance(backbone, enlarges=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backbone, "levels", lambda x: seen.append(x) or levels(x))
        value = distance(images(0), images(1))
    assert [image.shape for image in seen] == [(2, 3, 64, 64)] * 2
    assert all(image.min() >= 0 and image.max() <= 1 for image in seen)
    assert value.item() != FeatureDistance(backbone)(images(0), images(1)).item()
