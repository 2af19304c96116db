"""The flow of VFIformer: estimated from coarse to fine, then refined with features of the images.

Flows have four channels, x and y in px from the middle to the image before, and to the image
after.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.rife import ConvPair, conv_prelu, resize, warp

SCALES = (4, 2, 1)
NEIGHBOURS = 9  # the places around a pixel, and itself
CENTRE = 4


class FlowNet(nn.Module):
    """Three estimates of the flow, each from the images as the one before warps them."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        for number, width in enumerate(widths):
            self.add_module(f"block{number}", FlowBlock(10 if number else 6, width, SCALES[number]))

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Images [N, 3, H, W] → flow [N, 4, H/2, W/2] in px of that half resolution."""
        flow: Tensor = self.get_submodule("block0")(torch.cat((before, after), 1))
        for number in range(1, len(SCALES)):
            full = resize(flow, 2) * 2
            warped = warp(before, full[:, :2]), warp(after, full[:, 2:])
            flow = flow + self.get_submodule(f"block{number}")(torch.cat((*warped, full), 1))
        return flow


class FlowBlock(nn.Module):
    """One estimate, computed at 1/scale of the image's size."""

    def __init__(self, channels: int, width: int, scale: int) -> None:
        super().__init__()
        self.scale = scale
        self.conv0 = nn.Sequential(
            conv_prelu(channels, width // 2, stride=2), conv_prelu(width // 2, width, stride=2)
        )
        self.convblock = nn.Sequential(*(conv_prelu(width, width) for _ in range(8)))
        self.conv1 = nn.ConvTranspose2d(width, 4, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] → flow [N, 4, H/2, W/2], whose values do not scale with its size."""
        x = self.conv0(resize(x, 1 / self.scale).contiguous(memory_format=torch.channels_last))
        x = self.convblock(x) + x
        # In float32 also under autocast: a rounded flow of 20 px is 0.06 px off.
        return resize(self.conv1(x).contiguous().float(), self.scale)


class RefineNet(nn.Module):
    """Features of both images at four sizes, and blocks that refine the flow from coarse to fine.

    Args:
        widths: Of the features at each size.
        refines: Whether there are such blocks.
    """

    def __init__(self, widths: Sequence[int], refines: bool) -> None:
        super().__init__()
        self.levels, self.refines = len(widths), refines
        for level, width in enumerate(widths):
            channels, stride = (widths[level - 1], 2) if level else (3, 1)
            self.add_module(f"conv{level + 1}", ConvPair(channels, width, stride))
            if refines:
                self.add_module(f"rf_block{level + 1}", RefineBlock(width))

    def features(self, before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Images [N, 3, H, W] → features of both at each level, [N, C, H / 2^i, W / 2^i]."""
        x = torch.cat((before, after)).contiguous(memory_format=torch.channels_last)
        levels = []
        for level in range(self.levels):
            x = self.get_submodule(f"conv{level + 1}")(x)
            # `warp` takes them in float32: cast once here, and not for each of its calls.
            of_before, of_after = x.float().chunk(2)
            levels.append((of_before, of_after))
        return levels

    def refine(self, flow: Tensor, features: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Flow as `FlowNet` gives it → flow [N, 4, H, W] in px of the images."""
        if not self.refines:
            return resize(flow, 2) * 2
        flow = resize(flow, 0.25) * 0.25
        for level in reversed(range(self.levels)):
            flow = self.get_submodule(f"rf_block{level + 1}")(*features[level], flow)
            if level:
                flow = resize(flow, 2) * 2
        return flow


def warped(features: Sequence[tuple[Tensor, Tensor]], flow: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The features of every level, warped by the flow [N, 4, H, W] at that level's size."""
    levels = []
    for before, after in features:
        levels.append((warp(before, flow[:, :2]), warp(after, flow[:, 2:])))
        flow = resize(flow, 0.5) * 0.5
    return levels


class RefineBlock(nn.Module):
    """Corrects the flow to either image by how like the warped neighbourhoods are.

    Both flows go through the same layers, whose names follow the published checkpoint.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.occl_convs = nn.Sequential(
            *pointwise(2 * width, width), *pointwise(width, width), nn.Conv2d(width, 1, 1)
        )
        self.corr_convs = nn.Sequential(*pointwise(NEIGHBOURS, width), *pointwise(width, width))
        self.flow_convs = nn.Sequential(*conv_prelu(2, width), *conv_prelu(width, width))
        self.motion_convs = conv_prelu(2 * width, width)
        self.gru = nn.Sequential(*conv_prelu(3 * width + 2, width), *conv_prelu(width, width))
        self.flow_head = nn.Sequential(*conv_prelu(width, width), nn.Conv2d(width, 2, 3, padding=1))

    def forward(self, before: Tensor, after: Tensor, flow: Tensor) -> Tensor:
        """Features [N, C, H, W] of both images and flow [N, 4, H, W] → flow [N, 4, H, W]."""
        flows = flow[:, :2], flow[:, 2:]
        centres = warp(before, flows[0]), warp(after, flows[1])
        share = torch.sigmoid(self.occl_convs(torch.cat(centres, 1)).float())
        middle = centres[0] * share + centres[1] * (1 - share)
        direction = unit(middle)
        refined = []
        for image, one_flow, centre in zip((before, after), flows, centres, strict=True):
            likeness = correlation(direction, image, one_flow, centre)
            motion = self.motion_convs(
                torch.cat((self.corr_convs(likeness), self.flow_convs(one_flow)), 1)
            )
            hidden = self.gru(torch.cat((middle, centre, motion, one_flow), 1))
            refined.append(one_flow + self.flow_head(hidden).float())
        return torch.cat(refined, 1)


def correlation(direction: Tensor, features: Tensor, flow: Tensor, centre: Tensor) -> Tensor:
    """Cosine of `direction` and the warped features around each pixel: [N, 9, H, W], row by row.

    Args:
        direction: Of length 1, [N, C, H, W].
        centre: The features [N, C, H, W] warped by `flow`. The neighbours are taken one by one: all
            at once are nine times the features.
    """
    height, width = features.shape[-2:]
    framed = F.pad(features, (1, 1, 1, 1))  # beyond the border there is nothing
    cosines = []
    for number in range(NEIGHBOURS):
        neighbour = centre
        if number != CENTRE:
            row, column = divmod(number, 3)
            shifted = framed[..., row : row + height, column : column + width]
            neighbour = warp(shifted, flow)
        cosines.append((direction * unit(neighbour)).sum(1))
    return torch.stack(cosines, 1)


def unit(x: Tensor) -> Tensor:
    """`x` [N, C, H, W] with vectors of length 1 at each pixel; a vector of zeros stays."""
    return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt()


def pointwise(channels: int, width: int) -> tuple[nn.Module, nn.Module]:
    """A 1×1 convolution and its activation."""
    return nn.Conv2d(channels, width, 1), nn.PReLU(width)
