"""Attention within windows, and of each window to a larger one at half the resolution.

Maps are [B, H, W, C]. A map is cut into windows of w × w tokens, row by row: [M, w², C] with
M = B · H/w · W/w. Source: Liu et al., "Swin Transformer", ICCV 2021; the second kind is of Lu et
al., "Video Frame Interpolation with Transformer", CVPR 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = -100.0  # of a score whose key is to have no weight
SLOPE = 0.2  # of every LeakyReLU


@dataclass(frozen=True)
class Masks:
    """What is added to the scores in shifted blocks, for the windows of one map.

    A rolled map holds places side by side that are far apart in the image. `own` [M/B, w², w²] has
    `HIDDEN` where a query and a key of its window are such places, `coarse` [M/B, w², w²] where
    the key is of the coarse window, and 0 elsewhere.
    """

    own: Tensor
    coarse: Tensor

    @classmethod
    def of(cls, height: int, width: int, window: int, device: torch.device) -> Masks:
        """The masks of maps of height × width tokens that are rolled by half a window."""
        rows, columns = (_bands(size, window, device) for size in (height, width))
        regions = (3 * rows[:, None] + columns).view(1, height, width, 1)
        queries = windows_of(regions, window)  # [M, w², 1]
        keys = coarse_windows_of(half_size(regions), window)
        return cls(*(HIDDEN * (queries != k.mT).float() for k in (queries, keys)))


class WindowAttention(nn.Module):
    """Self-attention in each window, with a learnt bias for each offset of key from query."""

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.width, self.window, self.heads = width, window, heads
        self.relative_position_bias_table = bias_table(window, heads)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, windows: Tensor, x: Tensor, masks: Masks | None) -> Tensor:
        """windows: those of the map x, [M, w², C] → [M, w², C]. masks: of a rolled map."""
        q, k, v = split_heads(self.qkv(windows), 3, self.heads)
        bias = bias_of(self.relative_position_bias_table, self.window)
        result: Tensor = self.proj(attend(q, k, v, bias, masks.own if masks else None))
        return result


class CrossScaleAttention(nn.Module):
    """`WindowAttention` joined with attention to a window of twice its sides, half as fine."""

    def __init__(self, width: int, window: int, heads: int) -> None:
        super().__init__()
        self.width, self.window, self.heads = width, window, heads
        self.relative_position_bias_table_x = bias_table(window, heads)
        self.relative_position_bias_table_y = bias_table(window, heads)
        self.qkv, self.kv = nn.Linear(width, 3 * width), nn.Linear(width, 2 * width)
        self.merge1, self.merge2 = nn.Linear(2 * width, width), nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(self, windows: Tensor, x: Tensor, masks: Masks | None) -> Tensor:
        """windows: those of the map x [B, H, W, C], [M, w², C] → [M, w², C]."""
        q, k, v = split_heads(self.qkv(windows), 3, self.heads)
        bias = bias_of(self.relative_position_bias_table_x, self.window)
        own = attend(q, k, v, bias, masks.own if masks else None)
        # Each coarse token lies in four windows: it is projected once, before they are cut.
        tokens = coarse_windows_of(self.kv(half_size(x)), self.window)
        k, v = split_heads(tokens, 2, self.heads)
        bias = bias_of(self.relative_position_bias_table_y, self.window)
        coarse = attend(q, k, v, bias, masks.coarse if masks else None)
        merged = F.leaky_relu(self.merge1(torch.cat((own, coarse), -1)), SLOPE)
        result: Tensor = self.proj(self.merge2(merged) + own)
        return result


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of q to k and v, each [M, heads, w², d] → [M, w², heads · d].

    Args:
        bias: [heads, w², w²], added to the scaled scores.
        mask: [M/B, w², w²], added too.
    """
    if mask is not None:
        bias = (bias + mask[:, None]).repeat(len(q) // len(mask), 1, 1, 1)
    result = F.scaled_dot_product_attention(q, k, v, bias.to(q.dtype))
    return result.transpose(1, 2).flatten(2)


def split_heads(tokens: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[M, n, parts · heads · d] → so many tensors [M, heads, n, d]."""
    return tokens.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def bias_table(window: int, heads: int) -> nn.Parameter:
    """A bias for each head and each of the (2w − 1)² offsets."""
    return nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))


def bias_of(table: Tensor, window: int) -> Tensor:
    """Bias of every query and key of a window: [(2w − 1)², heads] → [heads, w², w²]."""
    index = relative_position_index(window).to(table.device)
    return table[index.flatten()].view(*index.shape, -1).permute(2, 0, 1)


def relative_position_index(window: int) -> Tensor:
    """Which row of a bias table holds a query's offset from a key, int64 [w², w²]."""
    place = torch.arange(window)
    offset = place[:, None] - place + window - 1  # [w, w] of query and key, from 0
    rows, columns = offset[:, None, :, None], offset[None, :, None, :]
    return (rows * (2 * window - 1) + columns).reshape(window**2, window**2)


def windows_of(x: Tensor, window: int) -> Tensor:
    """The windows of a map: [B, H, W, C] → [M, w², C]."""
    b, h, w, c = x.shape
    x = x.view(b, h // window, window, w // window, window, c)
    return x.transpose(2, 3).reshape(-1, window**2, c)


def map_of(windows: Tensor, size: tuple[int, int]) -> Tensor:
    """The map [B, H, W, C] of its windows [M, w², C].

    Args:
        size: H and W.
    """
    _, tokens, c = windows.shape
    side = int(tokens**0.5)
    rows, columns = size[0] // side, size[1] // side
    x = windows.view(-1, rows, columns, side, side, c)
    return x.transpose(2, 3).reshape(-1, *size, c)


def half_size(x: Tensor) -> Tensor:
    """The map at half the resolution, [B, H, W, C] → [B, H/2, W/2, C]: means of 2 × 2 tokens."""
    b, h, w, c = x.shape
    return x.view(b, h // 2, 2, w // 2, 2, c).mean((2, 4))


def coarse_windows_of(x: Tensor, window: int) -> Tensor:
    """For each window of the full map the window of twice its sides around the same centre.

    Args:
        x: The map at half the resolution [B, H/2, W/2, C], which is mirrored at its borders. → [M,
            w², C] in the order of `windows_of`.
    """
    margin = window // 4
    mirrored = F.pad(x.permute(0, 3, 1, 2), (margin,) * 4, mode="reflect")
    step = window // 2
    cut = mirrored.unfold(2, window, step).unfold(3, window, step)  # [B, C, rows, columns, w, w]
    return cut.permute(0, 2, 3, 4, 5, 1).reshape(-1, window**2, x.shape[-1])


def _bands(size: int, window: int, device: torch.device) -> Tensor:
    """Which of three parts of a rolled axis each place is of: float32 [size] of 0, 1 and 2.

    The last half window has come from the other end, and the half before it is now its neighbour.
    """
    place = torch.arange(size, device=device)
    return ((place >= size - window).float() + (place >= size - window // 2)).float()
