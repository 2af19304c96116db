"""The U-Net of windowed transformers that makes the mask and the residual of the middle frame.

It has four levels, each at half the size of the one before, and skips between them. At every level
but the last, a group of blocks attends within windows and a second one across scales too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_prep.models.vfiformer.attention import (
    SLOPE,
    CrossScaleAttention,
    Masks,
    WindowAttention,
    map_of,
    windows_of,
)

LEVELS = 4
BLOCKS = 3  # of a group at the first levels; the last level's have one
MLP_RATIO = 2


class UNet(nn.Module):
    """Features and both images' warped context → what makes the middle frame.

    Args:
        channels: Of the input.
        contexts: Of each image's context at each level. Module names follow the published
            checkpoint.
    """

    def __init__(
        self, channels: int, width: int, window: int, heads: int, contexts: Sequence[int]
    ) -> None:
        super().__init__()
        self.window = window
        self.conv_first = conv(channels, width)
        self.patch_embed = PatchNorm(width)
        self.norm = nn.LayerNorm(width)  # of all levels, as the one of `patch_embed` is
        for level in range(LEVELS):
            is_last = level == LEVELS - 1
            count, second = (1, WindowAttention) if is_last else (BLOCKS, CrossScaleAttention)
            groups = [
                Group([attention(width, window, heads) for _ in range(count)])
                for attention in (WindowAttention, second)
            ]
            self.add_module(f"layers{level}", nn.ModuleList(groups))
        for level in range(LEVELS - 1):
            joined = width + 2 * contexts[level]
            self.add_module(f"conv_after_body{level}", halving(joined, width))
        self.conv_up0 = doubling(width + 2 * contexts[-1], width)
        self.conv_up1, self.conv_up2 = doubling(2 * width, width), doubling(2 * width, width)
        self.conv_last1 = nn.Sequential(conv(2 * width, width), leaky(), conv(width, width))
        self.conv_last2 = nn.Sequential(conv(width, width // 2), leaky(), conv(width // 2, 4))

    def forward(self, x: Tensor, contexts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """x [N, channels, H, W] → [N, 4, H, W]: three channels of the residual, one of the mask.

        Args:
            contexts: Of level i the warped context of both images, each [N, C, H / 2^i, W / 2^i].
        """
        first = x = self.conv_first(x)
        outputs = []
        for level in range(LEVELS - 1):
            outputs.append(self._level(x, level))
            down = self.get_submodule(f"conv_after_body{level}")
            x = down(torch.cat((outputs[-1], *contexts[level]), 1))
        x = self._level(x, LEVELS - 1)
        x = self.conv_up0(torch.cat((x, *contexts[-1]), 1))
        x = self.conv_up1(torch.cat((x, outputs[2]), 1))
        x = self.conv_up2(torch.cat((x, outputs[1]), 1))
        x = self.conv_last1(torch.cat((x, outputs[0]), 1)) + first
        result: Tensor = self.conv_last2(x)
        return result

    def _level(self, x: Tensor, level: int) -> Tensor:
        """The groups of a level, [N, C, H, W] → [N, C, H, W]."""
        x = self.patch_embed(x.permute(0, 2, 3, 1))
        masks = None
        if level < LEVELS - 1:  # where blocks are shifted
            masks = Masks.of(x.shape[1], x.shape[2], self.window, x.device)
        for group in self.get_submodule(f"layers{level}").children():
            x = group(x, masks)
        result: Tensor = self.norm(x).permute(0, 3, 1, 2)
        return result


class PatchNorm(nn.Module):
    """The norm before the groups, under the name that it has in the checkpoint."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, H, W, C] → the same."""
        result: Tensor = self.norm(x)
        return result


class Group(nn.Module):
    """Blocks and a convolution, with a residual around them. Of the blocks every second shifts."""

    def __init__(self, attentions: Sequence[WindowAttention | CrossScaleAttention]) -> None:
        super().__init__()
        blocks = [
            Block(attention, attention.window // 2 * (number % 2))
            for number, attention in enumerate(attentions)
        ]
        self.residual_group = Blocks(blocks)
        self.conv = conv(attentions[0].width, attentions[0].width)

    def forward(self, x: Tensor, masks: Masks | None) -> Tensor:
        """[B, H, W, C] → the same.

        Args:
            masks: Of shifted blocks.
        """
        y = self.residual_group(x, masks).permute(0, 3, 1, 2)
        result: Tensor = self.conv(y).permute(0, 2, 3, 1) + x
        return result


class Blocks(nn.Module):
    """Blocks one after the other, under the name that they have in the checkpoint."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, masks: Masks | None) -> Tensor:
        for block in self.blocks:
            x = block(x, masks)
        return x


class Block(nn.Module):
    """Attention and an MLP, each after a norm and with a residual.

    Args:
        shift: Of the windows.
    """

    def __init__(self, attention: WindowAttention | CrossScaleAttention, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1, self.norm2 = nn.LayerNorm(attention.width), nn.LayerNorm(attention.width)
        self.attn = attention
        self.mlp = MLP(attention.width)

    def forward(self, x: Tensor, masks: Masks | None) -> Tensor:
        """[B, H, W, C] → the same.

        Args:
            masks: Needed by a shifted block only.
        """
        y = self.norm1(x)
        if self.shift:
            y = y.roll((-self.shift, -self.shift), (1, 2))
        windows = windows_of(y, self.attn.window)
        y = map_of(self.attn(windows, y, masks if self.shift else None), y.shape[1:3])
        if self.shift:
            y = y.roll((self.shift, self.shift), (1, 2))
        x = x + y
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class MLP(nn.Module):
    """Two linear layers with an exact GELU in between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, MLP_RATIO * width)
        self.fc2 = nn.Linear(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return result


def conv(channels: int, width: int, stride: int = 1) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size, or divides it by `stride`."""
    return nn.Conv2d(channels, width, 3, stride, padding=1)


def leaky() -> nn.LeakyReLU:
    """The activation of all convolutions of the transformer."""
    return nn.LeakyReLU(SLOPE)


def halving(channels: int, width: int) -> nn.Sequential:
    """Two convolutions, of which the first halves the size."""
    return nn.Sequential(conv(channels, width, 2), leaky(), conv(width, width), leaky())


def doubling(channels: int, width: int) -> nn.Sequential:
    """A transposed convolution that doubles the size, and its activation."""
    return nn.Sequential(nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1), leaky())
