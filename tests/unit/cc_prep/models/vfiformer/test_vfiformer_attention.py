"""Windows, coarse windows, masks and offsets of VFIformer's attention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.models.vfiformer.attention import (
    HIDDEN,
    CrossScaleAttention,
    Masks,
    WindowAttention,
    bias_of,
    coarse_windows_of,
    half_size,
    map_of,
    relative_position_index,
    windows_of,
)

CPU = torch.device("cpu")


def numbered(height: int, width: int) -> torch.Tensor:
    """A map [1, H, W, 2] whose tokens are their rows and columns."""
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((rows, columns), -1)[None].float()


@given(st.sampled_from([2, 4, 8]), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=20)
def test_a_map_is_that_of_its_windows(window: int, rows: int, columns: int, batch: int) -> None:
    """Keeps away: windows of one image in another's map, rows taken for columns."""
    x = torch.rand(batch, rows * window, columns * window, 3)
    windows = windows_of(x, window)
    assert windows.shape == (batch * rows * columns, window**2, 3)
    assert torch.equal(map_of(windows, x.shape[1:3]), x)
    assert torch.equal(windows[columns - 1], x[0, :window, -window:].reshape(-1, 3))


@pytest.mark.parametrize("window", [4, 8])
def test_coarse_windows_lie_around_their_windows(window: int) -> None:
    """Keeps away: coarse windows shifted, or in another order than the fine ones."""
    x = numbered(4 * window, 5 * window)
    fine, coarse = windows_of(x, window), coarse_windows_of(half_size(x), window)
    assert fine.shape == coarse.shape
    inner = [5 * row + column for row in (1, 2) for column in (1, 2, 3)]  # not mirrored
    assert torch.allclose(fine[inner].mean(1), coarse[inner].mean(1))
    spans = coarse[inner].amax(1) - coarse[inner].amin(1)
    assert (spans == 2 * (window - 1)).all()
    assert torch.allclose(half_size(x)[0, 1, 2], torch.tensor([2.5, 4.5]))


def test_coarse_windows_are_mirrored_at_the_border() -> None:
    """Keeps away: zeros or repeated pixels there."""
    corner = coarse_windows_of(numbered(8, 8), 4)[0].view(4, 4, 2)
    assert corner[:, 0, 0].tolist() == [1, 0, 1, 2]
    assert corner[0, :, 1].tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize("window", [4, 8])
def test_masks_hide_what_was_far_apart(window: int) -> None:
    """Keeps away: attention between opposite borders of the image in shifted blocks."""
    height, width = 3 * window, 4 * window
    shift = window // 2
    places = numbered(height, width).roll((-shift, -shift), (1, 2))
    masks = Masks.of(height, width, window, CPU)
    queries = windows_of(places, window)
    gap = (queries[:, :, None] - queries[:, None]).abs().amax(-1)
    assert torch.equal(masks.own, HIDDEN * (gap >= window).float())
    # Away from the roll's seam a coarse window reaches a window further, and no further.
    last = 4 * 2 + 3
    hidden = masks.coarse == HIDDEN
    assert not hidden[0].any()
    assert hidden[last].any()
    keys = coarse_windows_of(half_size(places), window)
    far = (queries[last][:, None] - keys[last]).abs().amax(-1) >= 2 * window
    assert hidden[last][far].all()


def test_bias_belongs_to_the_offset() -> None:
    """Keeps away: a transposed table, query and key exchanged."""
    window = 4
    side = 2 * window - 1
    table = torch.arange(side**2).float()[:, None]
    bias = bias_of(table, window)[0].view(window, window, window, window)
    for query in ((0, 0), (1, 3), (3, 2)):
        for key in ((0, 0), (2, 1), (3, 3)):
            row, column = (q - k + window - 1 for q, k in zip(query, key, strict=True))
            assert bias[(*query, *key)] == row * side + column
    assert relative_position_index(8).shape == (64, 64)


@pytest.mark.parametrize("kind", [WindowAttention, CrossScaleAttention])
@torch.inference_mode()
def test_attention_as_it_is_written(kind: type) -> None:
    """Keeps away: heads mixed up, a scale forgotten, keys of a coarse window projected wrongly."""
    torch.manual_seed(0)
    window, width, heads = 4, 6, 2
    module = kind(width, window, heads)
    for parameter in module.parameters():
        parameter.normal_(std=0.5)
    x = torch.randn(1, 8, 12, width)
    windows, masks = windows_of(x, window), Masks.of(8, 12, window, CPU)
    ours = module(windows, x, masks)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor,
               mask: torch.Tensor) -> torch.Tensor:  # fmt: skip
        parts = []
        for head in range(heads):
            of = slice(3 * head, 3 * head + 3)
            scores = (q[..., of] * 3**-0.5) @ k[..., of].mT
            scores = scores + bias_of(table, window)[head] + mask
            parts.append(scores.softmax(-1) @ v[..., of])
        return torch.cat(parts, -1)

    q, k, v = module.qkv(windows).chunk(3, -1)
    if kind is WindowAttention:
        expected = attend(q, k, v, module.relative_position_bias_table, masks.own)
    else:
        own = attend(q, k, v, module.relative_position_bias_table_x, masks.own)
        k, v = module.kv(coarse_windows_of(half_size(x), window)).chunk(2, -1)
        coarse = attend(q, k, v, module.relative_position_bias_table_y, masks.coarse)
        joined = torch.cat((own, coarse), -1)
        slope = torch.nn.functional.leaky_relu(module.merge1(joined), 0.2)
        expected = module.merge2(slope) + own
    assert torch.allclose(ours, module.proj(expected), atol=1e-5)
