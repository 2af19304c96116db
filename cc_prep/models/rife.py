"""RIFE v4.0 ("IFNet HDv3"): the frame half way between two frames.

Four blocks estimate, from coarse to fine, the flow from the middle to either end and a mask that
mixes the two warped ends. Module names follow the published checkpoint, so its tensors load by
name. Source: Huang et al., "Real-Time Intermediate Flow Estimation for Video Frame
Interpolation", ECCV 2022, and the public release 4.0.

Two things differ from the release on purpose. The large-motion rule is decided for each sample
from its own pixels. The release takes the maximum over the batch and its padding, and doubles its
list of scales in place, so that a pair changes the next one where a caller hands in the same list.
And sizes are padded here, not by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SCALES = (8, 4, 2, 1)
WIDTHS = (192, 128, 96, 64)
LARGE_MOTION_PX = 32.0


class RIFE(nn.Module):
    """Midpoint network.

    Args:
        pad_multiple: Images are zero-padded right and bottom to a multiple of this; 128 is what the
            release does, 32 is the least the network takes. Frames differ slightly between the two.
        refine: Add the residual of the checkpoint's refinement nets (the release leaves it off).
        padding_mode: `zeros`, or `replicate` for the images' border pixels.
    """

    def __init__(
        self, pad_multiple: int = 128, refine: bool = False, padding_mode: str = "zeros"
    ) -> None:
        super().__init__()
        if pad_multiple % 32:
            raise ValueError(f"pad_multiple must be a multiple of 32, not {pad_multiple}")
        self.pad_multiple, self.padding_mode = pad_multiple, padding_mode
        self.block0 = FlowBlock(3 + 3 + 1, WIDTHS[0])
        self.block1 = FlowBlock(3 + 3 + 1 + 1 + 4, WIDTHS[1])
        self.block2 = FlowBlock(3 + 3 + 1 + 1 + 4, WIDTHS[2])
        self.block3 = FlowBlock(3 + 3 + 1 + 1 + 4, WIDTHS[3])
        self.contextnet = ContextNet() if refine else None
        self.unet = RefinementUNet() if refine else None

    def forward(self, before: Tensor, after: Tensor) -> Tensor:
        """Frames at t = 0.5 between `before` and `after`, all [N, 3, H, W] float in [0, 1].

        Every sample's result depends on that sample alone, not on its neighbours in the batch.
        """
        height, width = before.shape[-2:]
        before, after = (self._pad(x, self.pad_multiple) for x in (before, after))
        flow, mask, large = self._coarse(before, after, SCALES[:2], (height, width))
        middle = self._fine(before, after, flow, mask, SCALES[2:])
        if large.any():
            middle[large] = self._large_motion(before[large], after[large], (height, width))
        return middle[..., :height, :width]

    def _large_motion(self, before: Tensor, after: Tensor, size: tuple[int, int]) -> Tensor:
        """The middle frame, estimated at doubled scales: sides must be multiples of 64 too."""
        doubled = tuple(2 * scale for scale in SCALES)
        shape = before.shape[-2:]
        before, after = (self._pad(x, math.lcm(64, self.pad_multiple)) for x in (before, after))
        flow, mask, _ = self._coarse(before, after, doubled[:2], size)
        middle = self._fine(before, after, flow, mask, doubled[2:])
        return middle[..., : shape[0], : shape[1]]

    def _coarse(
        self, before: Tensor, after: Tensor, scales: tuple[int, ...], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Blocks 0 and 1: flow [N, 4, H, W] in px, mask [N, 1, H, W], and who moves far [N]."""
        half = torch.full_like(before[:, :1], 0.5)
        flow, mask = self.block0((before, after, half), None, scales[0])
        more_flow, more_mask = self._increment(self.block1, before, after, flow, mask, scales[1])
        within = more_flow[..., : size[0], : size[1]].abs()
        far_from_before = within[:, :2].amax((1, 2, 3)) > LARGE_MOTION_PX
        far_from_after = within[:, 2:].amax((1, 2, 3)) > LARGE_MOTION_PX
        return flow + more_flow, mask + more_mask, far_from_before & far_from_after

    def _fine(
        self, before: Tensor, after: Tensor, flow: Tensor, mask: Tensor, scales: tuple[int, ...]
    ) -> Tensor:
        for block, scale in zip((self.block2, self.block3), scales, strict=True):
            more_flow, more_mask = self._increment(block, before, after, flow, mask, scale)
            flow, mask = flow + more_flow, mask + more_mask
        from_before, from_after = warp(before, flow[:, :2]), warp(after, flow[:, 2:])
        weight = torch.sigmoid(mask)
        middle = from_before * weight + from_after * (1 - weight)
        if self.contextnet is None or self.unet is None:
            return middle
        contexts = self.contextnet(before, flow[:, :2]), self.contextnet(after, flow[:, 2:])
        stacked = torch.cat((before, after, from_before, from_after, mask, flow), 1)
        return (middle + self.unet(stacked, *contexts) * 2 - 1).clamp(0, 1)

    def _pad(self, image: Tensor, multiple: int) -> Tensor:
        """`image` padded right and bottom so that both sides divide by `multiple`."""
        height, width = image.shape[-2:]
        sides = (0, -width % multiple, 0, -height % multiple)
        if self.padding_mode == "replicate":
            return F.pad(image, sides, mode="replicate")
        return F.pad(image, sides)

    @staticmethod
    def _increment(
        block: FlowBlock, before: Tensor, after: Tensor, flow: Tensor, mask: Tensor, scale: int
    ) -> tuple[Tensor, Tensor]:
        from_before, from_after = warp(before, flow[:, :2]), warp(after, flow[:, 2:])
        half = torch.full_like(mask, 0.5)
        return block((from_before, from_after, half, mask), flow, scale)


class FlowBlock(nn.Module):
    """One estimate of flow and mask at 1/scale of the image's size."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv0 = nn.Sequential(
            conv_prelu(channels, width // 2, stride=2), conv_prelu(width // 2, width, stride=2)
        )
        self.convblock = nn.Sequential(*(conv_prelu(width, width) for _ in range(8)))
        self.lastconv = nn.ConvTranspose2d(width, 5, 4, stride=2, padding=1)

    def forward(
        self, inputs: Sequence[Tensor], flow: Tensor | None, scale: int
    ) -> tuple[Tensor, Tensor]:
        """Joined once they are small.

        Args:
            inputs: Each [N, C, H, W]; flow [N, 4, H, W] in px → increments of flow, mask.
        """
        parts = [resize(part, 1 / scale) for part in inputs]
        if flow is not None:
            parts.append(resize(flow, 1 / scale) / scale)
        # Channels last for the convolutions, which would turn each input round for themselves, and
        # back: a tenth of the network's time on a CPU.
        x = self.conv0(torch.cat(parts, 1).contiguous(memory_format=torch.channels_last))
        x = self.convblock(x) + x
        # Flow and mask in float32 also under autocast: a rounded flow of 20 px is 0.06 px off.
        x = resize(self.lastconv(x).contiguous().float(), 2 * scale)
        return x[:, :4] * (2 * scale), x[:, 4:5]


class ContextNet(nn.Module):
    """Four levels of image features, each warped by the flow at its size."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 128)
        for level in range(4):
            stage = ConvPair(widths[level], widths[level + 1])
            self.add_module(f"conv{level + 1}", stage)

    def forward(self, x: Tensor, flow: Tensor) -> list[Tensor]:
        levels = []
        for level in range(4):
            x = self.get_submodule(f"conv{level + 1}")(x)
            flow = resize(flow, 0.5) * 0.5
            levels.append(warp(x, flow))
        return levels


class RefinementUNet(nn.Module):
    """Residual of the middle frame, in [0, 1] with 0.5 for none."""

    def __init__(self) -> None:
        super().__init__()
        self.down0, self.down1 = ConvPair(17, 32), ConvPair(64, 64)
        self.down2, self.down3 = ConvPair(128, 128), ConvPair(256, 256)
        self.up0, self.up1 = deconv_prelu(512, 128), deconv_prelu(256, 64)
        self.up2, self.up3 = deconv_prelu(128, 32), deconv_prelu(64, 16)
        self.conv = nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x: Tensor, before: list[Tensor], after: list[Tensor]) -> Tensor:
        s0 = self.down0(x)
        s1 = self.down1(torch.cat((s0, before[0], after[0]), 1))
        s2 = self.down2(torch.cat((s1, before[1], after[1]), 1))
        s3 = self.down3(torch.cat((s2, before[2], after[2]), 1))
        x = self.up0(torch.cat((s3, before[3], after[3]), 1))
        x = self.up1(torch.cat((x, s2), 1))
        x = self.up2(torch.cat((x, s1), 1))
        x = self.up3(torch.cat((x, s0), 1))
        return torch.sigmoid(self.conv(x))


class ConvPair(nn.Module):
    """A convolution that halves the size, or divides it by `stride`, and one that keeps it."""

    def __init__(self, channels: int, width: int, stride: int = 2) -> None:
        super().__init__()
        self.conv1 = conv_prelu(channels, width, stride)
        self.conv2 = conv_prelu(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.conv1(x))


def conv_prelu(channels: int, width: int, stride: int = 1) -> nn.Sequential:
    """A 3×3 convolution and its activation, which has one slope a channel."""
    return nn.Sequential(nn.Conv2d(channels, width, 3, stride, padding=1), nn.PReLU(width))


def deconv_prelu(channels: int, width: int) -> nn.Sequential:
    """A transposed convolution that doubles the size, and its activation."""
    return nn.Sequential(
        nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1), nn.PReLU(width)
    )


def resize(x: Tensor, scale: float) -> Tensor:
    """Bilinear resize by a factor (align_corners False), as the release does at every scale."""
    if scale == 1:
        return x
    return F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """`image` [N, C, H, W] looked up at each pixel's place plus `flow` [N, 2, H, W] (x, y in px).

    Places outside take the nearest border pixel. The result has the type of `flow`: float32, since
    half precision cannot tell neighbouring places of a large image apart.
    """
    height, width = image.shape[-2:]
    x = torch.linspace(-1, 1, width, device=image.device, dtype=flow.dtype).view(1, 1, width)
    y = torch.linspace(-1, 1, height, device=image.device, dtype=flow.dtype).view(1, height, 1)
    grid = torch.stack(
        (x + flow[:, 0] * (2 / (width - 1)), y + flow[:, 1] * (2 / (height - 1))), dim=-1
    )
    return F.grid_sample(
        image.to(grid.dtype), grid, mode="bilinear", padding_mode="border", align_corners=True
    )
