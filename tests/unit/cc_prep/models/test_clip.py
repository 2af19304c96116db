"""CLIP's blocks: gradients as written out, and nothing kept that is cheap to make again."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

from cc_prep.models.clip import Block, RowMask, Transformer, recompute_in_backward


def plain(block: Block, x: Tensor) -> Tensor:
    """A block as it is written out in CLIP."""
    x = x + block.attn(block.ln_1(x))
    hidden = block.mlp.c_fc(block.ln_2(x))
    out: Tensor = x + block.mlp.c_proj(hidden * torch.sigmoid(1.702 * hidden))
    return out


@pytest.mark.parametrize("half", [False, True])
def test_gradients_are_those_of_the_plain_block(half: bool) -> None:
    torch.manual_seed(0)
    block, x = Block(128), torch.randn(2, 5, 128)
    results = []
    for way in (block, lambda y: plain(block, y)):
        block.zero_grad()
        y = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = way(y)
        out.square().sum().backward()
        results.append([out.detach(), y.grad, *(p.grad for p in block.parameters())])
    for ours, theirs in zip(*results, strict=True):
        assert (ours - theirs).norm() <= (0.02 if half else 1e-5) * theirs.norm()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("trained", ["mlp.c_proj.", "mlp.", "attn.out_proj.", "ln_2."])
def test_gradients_of_a_frozen_blocks_part_are_those_of_the_plain_block(
    half: bool, trained: str
) -> None:
    """Keeps away: an activation that is written over, because nothing before it is trained, and
    then made again of what was written."""
    torch.manual_seed(0)
    block, x = Block(128), torch.randn(2, 5, 128)
    for name, parameter in block.named_parameters():
        parameter.requires_grad_(name.startswith(trained))
    gradients = []
    for way in (block, lambda y: plain(block, y)):
        block.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            out = way(x.clone())
        out.square().sum().backward()
        gradients.append([out.detach(), *(p.grad for p in block.parameters() if p.requires_grad)])
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours - theirs).norm() <= (0.02 if half else 1e-5) * theirs.norm()


def test_what_is_remade_is_not_kept() -> None:
    activations: list[weakref.ref[Tensor]] = []

    def noted(y: Tensor) -> Tensor:
        out = y.exp() * 1
        activations.append(weakref.ref(out))
        return out

    layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    with recompute_in_backward(noted, x) as recomputed:
        out = layer(recomputed)
    del recomputed
    assert [ref() for ref in activations] == [None]
    out.sum().backward()
    assert len(activations) == 2
    torch.testing.assert_close(layer.weight.grad[0], x.exp().sum(0))


def test_without_gradients_a_block_says_the_same() -> None:
    """Keeps away: what is done in place there reaching a tensor that is still needed."""
    block, x = Block(128), torch.randn(2, 5, 128)
    before = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(block(x), plain(block, before))
    assert torch.equal(x, before)


def test_rows_with_a_mask_of_their_own_are_those_of_the_whole_mask() -> None:
    """Keeps away: a GPU, which takes this way, that sees something else than a processor."""
    torch.manual_seed(0)
    network, x = Transformer(64, 2), torch.randn(2, 7, 64)
    whole = torch.ones(7, 7, dtype=torch.bool)
    whole[3, :3] = whole[4, :4] = False
    results = []
    for mask in (whole, RowMask(3, whole[3:5])):
        network.zero_grad()
        some = network.last.forward_rows([0, 4], x, mask)
        one = network.last.forward_rows([3], x, mask)
        out = network(x, mask=mask)
        (out.square().sum() + some.square().sum() + one.square().sum()).backward()
        results.append([out, some, one, *(p.grad for p in network.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
