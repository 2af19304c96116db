"""Frozen networks whose grid features captioners read.

Images [N, 3, H, W] in [0, 1] become features [N, C, h, w].

Each is made from a checkpoint's tensors, in evaluation mode and without gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_prep.manifest import JOIN
from cc_prep.models import library_backbones, nanodet
from cc_prep.models.efficientnet import CHANNELS, TAPS, EfficientNetLite0
from cc_prep.models.library_backbones import LibraryBackbone
from cc_prep.models.nanodet import NanoDet
from cc_prep.models.vqgan import VQGAN
from cc_prep.records import Preprocessing


class Pyramid(nn.Module):
    """EfficientNet-Lite0's features of three sizes on the grid of 1/8 of the image.

    Stride 4 folded into channels, stride 8 as it is, stride 16 doubled. Colour and fine shape are
    in the first, what a thing is in the last.
    """

    folded = 4 * CHANNELS[1]  # the first channels: squares of 2 × 2 of a finer grid
    channels = folded + CHANNELS[2] + CHANNELS[3]

    def __init__(self, network: EfficientNetLite0) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        # What follows the coarsest level takes no part, and would only be shipped.
        del network._blocks[TAPS[-1] + 1 :], network._conv_head, network._bn1

    def forward(self, images: Tensor) -> Tensor:
        _, fine, middle, coarse = self.network.levels(images)
        parts = (
            F.pixel_unshuffle(fine, 2),
            middle,
            F.interpolate(coarse, size=middle.shape[2:], mode="nearest"),
        )
        return torch.cat(parts, dim=1)


class EnlargedPyramid(Pyramid):
    """EfficientNet-Lite0's features of images enlarged to twice their size, on the same grid.

    Strides 8 and 16 of the enlarged images, so 4 and 8 of the images: the first folded into
    channels, the second as it is. Small objects come to the size at which ImageNet shows shapes.
    """

    folded = 4 * CHANNELS[2]
    channels = folded + CHANNELS[3]

    def forward(self, images: Tensor) -> Tensor:
        levels = self.network.levels(enlarged(images))
        return torch.cat((F.pixel_unshuffle(levels[2], 2), levels[3]), dim=1)


def enlarged(images: Tensor) -> Tensor:
    """Images [N, 3, H, W] in [0, 1] at twice their size."""
    larger = F.interpolate(images, scale_factor=2, mode="bicubic", align_corners=False)
    return larger.clamp(0, 1)  # bicubic values overshoot at edges


class DetectorPyramid(nn.Module):
    """What NanoDet's heads see of images enlarged to twice their size, on the grid of 1/8.

    Stride 8 of the enlarged images averaged over squares of 2 × 2, stride 16 as it is, stride 32
    doubled: what a thing is, as a detector of objects knows it.
    """

    channels = 3 * nanodet.WIDTH

    def __init__(self, network: NanoDet) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        network.heads = nn.ModuleList()  # they take no part, and would only be shipped

    def forward(self, images: Tensor) -> Tensor:
        fine, middle, coarse = self.network.levels(enlarged(images))
        doubled = F.interpolate(coarse, size=middle.shape[2:], mode="nearest")
        return torch.cat((F.avg_pool2d(fine, 2), middle, doubled), dim=1)


class Joined(nn.Module):
    """The features of several backbones, channel by channel, on the grid of the first one."""

    def __init__(self, parts: Sequence[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, images: Tensor) -> Tensor:
        first, *others = (part(images) for part in self.parts)
        size = first.shape[2:]
        return torch.cat((first, *(_on_grid(one, size) for one in others)), dim=1)


def _on_grid(features: Tensor, size: torch.Size) -> Tensor:
    if features.shape[2:] == size:
        return features
    return F.interpolate(features, size=size, mode="bilinear", align_corners=False)


class Latents(nn.Module):
    """A VQGAN's encoder output before its codebook."""

    def __init__(self, network: VQGAN) -> None:
        super().__init__()
        self.network = network.requires_grad_(False)
        self.channels = network.config.latent

    def forward(self, images: Tensor) -> Tensor:
        return self.network.features(images)


@dataclass(frozen=True)
class Backbone:
    """make: from the tensors of a checkpoint. of_state: a network into which its own `state_dict`
    can be loaded.

    weights: the name of its default weights, if there are any. multiple: the sides of an image
    are multiples of it; None where that depends on the weights.
    """

    make: Callable[[Mapping[str, Tensor]], nn.Module]
    of_state: Callable[[Mapping[str, Tensor]], nn.Module]
    weights: str | None
    multiple: int | None


def _pyramid(tensors: Mapping[str, Tensor]) -> nn.Module:
    return Pyramid(EfficientNetLite0.from_tensors(tensors))


def _enlarged(tensors: Mapping[str, Tensor]) -> nn.Module:
    return EnlargedPyramid(EfficientNetLite0.from_tensors(tensors))


def _latents(tensors: Mapping[str, Tensor]) -> nn.Module:
    return Latents(VQGAN.from_tensors(tensors)[0])


def _own_latents(tensors: Mapping[str, Tensor]) -> nn.Module:
    return _latents({name.removeprefix("network."): tensor for name, tensor in tensors.items()})


def _detector(tensors: Mapping[str, Tensor]) -> nn.Module:
    return DetectorPyramid(NanoDet.from_tensors(tensors))


def _resnet(tensors: Mapping[str, Tensor]) -> nn.Module:
    from cc_prep.models.resnet import ResNet101  # torchvision takes a second to import

    return ResNet101.from_tensors(tensors)


def _empty_resnet() -> nn.Module:
    from cc_prep.models.resnet import ResNet101

    return ResNet101()


BACKBONES: dict[str, Backbone] = {
    "efficientnet-lite0": Backbone(
        _pyramid, lambda _: Pyramid(EfficientNetLite0()), "efficientnet-lite0", 16
    ),
    "efficientnet-lite0-x2": Backbone(
        _enlarged, lambda _: EnlargedPyramid(EfficientNetLite0()), "efficientnet-lite0", 8
    ),
    "nanodet": Backbone(_detector, lambda _: DetectorPyramid(NanoDet()), "nanodet", 16),
    "resnet101": Backbone(_resnet, lambda _: _empty_resnet(), None, 16),
    "vqgan": Backbone(_latents, _own_latents, "vqgan-mini", None),
}


def rebuild(
    name: str,
    tensors: Mapping[str, Tensor],
    preprocessing: Preprocessing | None = None,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> nn.Module:
    """A backbone from its own `state_dict`.

    Args:
        name: Of the backbone.
        tensors: Its `state_dict`.
        preprocessing: That of a library's backbone.
        config: Likewise, see `library_backbones.rebuild`.

    Raises:
        RuntimeError: The tensors are of another one.
        UserError: Likewise, or the name is not known.
    """
    if library_backbones.of_library(name) and preprocessing is not None:
        return library_backbones.rebuild(name, preprocessing, config, tensors)
    if not is_known(name):
        raise UserError(
            f"this version knows no backbone {name}",
            f"Use the version that made this captioner. Known here: {', '.join(BACKBONES)}",
        )
    network = _of_state(name, tensors)
    network.load_state_dict(dict(tensors))
    return network.requires_grad_(False).eval()


def parts_of(name: str) -> list[str]:
    """The backbones that a name joins: `a+b`; of one of a library, that name alone."""
    return [name] if library_backbones.of_library(name) else name.split(JOIN)


def is_known(name: str) -> bool:
    """Whether a name is of a backbone of ours, or of several joined ones."""
    return all(part in BACKBONES for part in parts_of(name))


def has_weights(name: str) -> bool:
    """Whether a backbone that `is_known` has weights by name."""
    return all(BACKBONES[part].weights is not None for part in parts_of(name))


def _of_state(name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    parts = parts_of(name)
    if len(parts) == 1:
        return BACKBONES[name].of_state(tensors)
    return Joined(
        [
            BACKBONES[part].of_state(
                {
                    key.removeprefix(f"parts.{i}."): tensor
                    for key, tensor in tensors.items()
                    if key.startswith(f"parts.{i}.")
                }
            )
            for i, part in enumerate(parts)
        ]
    )


def multiple(name: str, network: nn.Module) -> int:
    """What an image's sides must be multiples of, in px."""
    if isinstance(network, Joined):
        own = zip(parts_of(name), network.parts, strict=True)
        return math.lcm(*(multiple(part, one) for part, one in own))
    if isinstance(network, LibraryBackbone):
        return network.multiple
    fixed = BACKBONES[name].multiple
    if fixed is not None:
        return fixed
    assert isinstance(network, Latents)
    factor: int = network.network.config.factor
    return factor


def identity(name: str, network: nn.Module, sha256: str) -> tuple[str, str, Preprocessing | None]:
    """How shards record a backbone: name, digest, and the preprocessing of a library's.

    Args:
        name: Of the setting.
        network: The backbone.
        sha256: Of its weights; with a library's, the digest covers the preprocessing too.
    """
    if not isinstance(network, LibraryBackbone):
        return name, sha256, None
    return network.name, network.preprocessing.digest(sha256), network.preprocessing


def folded(network: nn.Module | None) -> int:
    """How many of the first channels are squares of 2 × 2 of a finer grid."""
    if isinstance(network, Joined):
        return folded(network.parts[0])
    return network.folded if isinstance(network, Pyramid) else 0
