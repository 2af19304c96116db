"""VFIformer: the frame half way between two frames.

The flow from the middle to either image is estimated and refined, both images and their features
are warped by it, and a transformer makes of them a mask, which mixes the two warped images, and a
residual. Module names follow the published checkpoints, so their tensors load by name.
Source: Lu et al., "Video Frame Interpolation with Transformer", CVPR 2022, and its public code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.rife import warp
from cc_prep.models.vfiformer.attention import SLOPE, relative_position_index
from cc_prep.models.vfiformer.flow import FlowNet, RefineNet, warped
from cc_prep.models.vfiformer.transformer import UNet, conv

MULTIPLE = 64  # of both sides: the coarsest of four sizes is cut into windows of 8 × 8
FUSED = 48  # channels that the transformer sees of images and warped images
# What checkpoints hold beside the parameters, and what the network computes for each size.
INDEX, MASK = "relative_position_index", "attn_mask"


@dataclass(frozen=True)
class Config:
    """Sizes of a VFIformer; the defaults are the published full model.

    Attributes:
        refines: Whether the flow is refined with features of the images.
        contexts: Channels of those features at each of four sizes.
    """

    width: int = 160
    window: int = 8
    heads: int = 2
    refines: bool = True
    flow_widths: tuple[int, ...] = (240, 150, 90)
    contexts: tuple[int, ...] = (24, 48, 96, 192)


VARIANTS = {
    "vfiformer": Config(),
    "vfiformer-small": Config(width=136, window=4, refines=False),
}


class VFIformer(nn.Module):
    """Midpoint network.

    Args:
        padding_mode: What images are padded with to multiples of 64, `zeros` (black, as published)
            or `replicate` (their border pixels). Images lie in the middle of their padding.
    """

    def __init__(self, config: Config, padding_mode: str = "zeros") -> None:
        super().__init__()
        self.config, self.padding_mode = config, padding_mode
        self.flownet = FlowNet(config.flow_widths)
        self.refinenet = RefineNet(config.contexts, config.refines)
        self.fuse_block = nn.Sequential(
            conv(12, FUSED), nn.LeakyReLU(SLOPE), conv(FUSED, FUSED), nn.LeakyReLU(SLOPE)
        )
        self.transformer = UNet(FUSED, config.width, config.window, config.heads, config.contexts)

    def forward(self, before: Tensor, after: Tensor, flow: Tensor | None = None) -> Tensor:
        """Frames at t = 0.5 between `before` and `after`, all [N, 3, H, W] float in [0, 1].

        Channels are in the order blue, green, red, as in the public code.

        Args:
            flow: [N, 4, H, W] in px from the middle to `before` and to `after`, in place of the
                network's own.
        """
        height, width = before.shape[-2:]
        top, left = -height % MULTIPLE // 2, -width % MULTIPLE // 2
        before, after = (self._pad(image) for image in (before, after))
        flow = None if flow is None else self._pad(flow)
        middle, _ = self.middle(before, after, flow)
        return middle[..., top : top + height, left : left + width]

    def middle(
        self, before: Tensor, after: Tensor, flow: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`forward` of padded images; the frame, and the flow [N, 4, H, W] that it was made by."""
        features = self.refinenet.features(before, after)
        if flow is None:
            flow = self.refinenet.refine(self.flownet(before, after), features)
        from_before, from_after = warp(before, flow[:, :2]), warp(after, flow[:, 2:])
        x = self.fuse_block(torch.cat((before, after, from_before, from_after), 1))
        result = self.transformer(x, warped(features, flow)).float()
        share = torch.sigmoid(result[:, 3:])
        mixed = from_before * share + from_after * (1 - share)
        return (mixed + 2 * torch.sigmoid(result[:, :3]) - 1).clamp(0, 1), flow

    def _pad(self, image: Tensor) -> Tensor:
        """Padded so that both sides divide by 64; of an odd number, one more right and bottom."""
        height, width = (-side % MULTIPLE for side in image.shape[-2:])
        sides = (width // 2, width - width // 2, height // 2, height - height // 2)
        if self.padding_mode == "replicate":
            return F.pad(image, sides, mode="replicate")
        return F.pad(image, sides)


def unknown_names(tensors: Mapping[str, Tensor], config: Config) -> list[str]:
    """Names of a checkpoint's tensors that such a network neither has nor computes itself.

    Published checkpoints hold masks too, which depend on the size of the images, and of each
    attention the rows of its table, which must be the network's.
    """
    with torch.device("meta"):
        known = VFIformer(config).state_dict().keys()
    index = relative_position_index(config.window)
    unknown = []
    for name, tensor in tensors.items():
        kind = name.rpartition(".")[2]
        is_own = name in known or kind.startswith(MASK)
        if kind == INDEX:
            is_own = tensor.shape == index.shape and bool((tensor == index).all())
        if not is_own:
            unknown.append(name)
    return unknown
