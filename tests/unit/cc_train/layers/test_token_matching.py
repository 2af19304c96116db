"""Token-wise matching in parts gives what the whole matrix gives, with its gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cc_train.layers import token_matching as module
from cc_train.layers.token_matching import contrast, token_matching


def whole(queries: Tensor, keys: Tensor, heads: int) -> Tensor:
    """The same by the whole matrix and torch's own gradients."""
    q, k = (x.unflatten(2, (heads, -1)) for x in (queries, keys))
    products = torch.einsum("alhd,bmhd->habml", q, k)
    matched = products.amax(3).mean(3) + products.amax(4).mean(3)
    return matched.sum(0) / 2


@settings(max_examples=20)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    tokens=st.integers(1, 7),
    heads=st.sampled_from([1, 2, 4]),
    room=st.sampled_from([1, 60, 10**6]),
    seed=st.integers(0, 99),
)
def test_any_parts_give_the_whole(
    rows: int, columns: int, tokens: int, heads: int, room: int, seed: int
) -> None:
    """Keeps away: rows or columns at the edge of a part that are left out or counted twice."""
    generator = torch.Generator().manual_seed(seed)
    queries, keys = (
        torch.randn(count, tokens, 8, generator=generator, requires_grad=True)
        for count in (rows, columns)
    )
    weights = torch.randn(rows, columns, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PRODUCTS", {"cpu": room, "cuda": room})
        patch.setattr(module, "EDGES", room)
        ours = token_matching(queries, keys, heads)
        gradients = torch.autograd.grad((ours * weights).sum(), (queries, keys))
        expected = whole(queries, keys, heads)
        of_whole = torch.autograd.grad((expected * weights).sum(), (queries, keys))
        torch.testing.assert_close(ours, expected)
        for gradient, right in zip(gradients, of_whole, strict=True):
            torch.testing.assert_close(gradient, right)
        # What a GPU does instead.
        patch.setattr(module, "_add_visited", module._add_multiplied)
        multiplied = token_matching(queries, keys, heads)
        gradients = torch.autograd.grad((multiplied * weights).sum(), (queries, keys))
        for gradient, right in zip(gradients, of_whole, strict=True):
            torch.testing.assert_close(gradient, right)


def test_heads_matter_and_scale_does_not_hide() -> None:
    """Keeps away: maxima that are taken after the heads are added up, which is one head."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(3, 5, 8, generator=generator) for _ in range(2))
    assert not torch.allclose(token_matching(queries, keys, 1), token_matching(queries, keys, 4))
    torch.testing.assert_close(token_matching(2 * queries, keys), 2 * token_matching(queries, keys))


def test_bfloat16_is_near_and_float16_does_not_overflow() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (60 * torch.randn(4, 6, 64, generator=generator) for _ in range(2))
    expected = token_matching(queries, keys)
    for half in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", half):
            ours = token_matching(queries, keys)
        torch.testing.assert_close(ours, expected, rtol=0.02, atol=0.02 * expected.abs().max())


def test_the_whole_is_never_there() -> None:
    """Keeps away: memory that grows with the square of the batch times that of the tokens."""
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            sizes.extend(t.numel() for t in torch.utils._pytree.tree_leaves(out)
                         if isinstance(t, Tensor))  # fmt: skip
            return out

    queries, keys = (torch.randn(6, 20, 4, requires_grad=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, Watch():
        patch.setattr(module, "PRODUCTS", {"cpu": 900, "cuda": 900})
        patch.setattr(module, "EDGES", 900)
        contrast(token_matching(queries, keys)).backward()
    assert max(sizes) < 6 * 6 * 20 * 20 / 4


def test_contrast() -> None:
    matching = torch.tensor([[2.0, 0.0], [1.0, 1.0]])
    expected = -(matching.log_softmax(1)[0, 0] + matching.log_softmax(1)[1, 1]) / 2
    assert contrast(matching) == pytest.approx(float(expected))
    assert contrast(matching[:0, :0]) == 0
    scenes = torch.tensor([4, 7])
    assert torch.equal(contrast(matching, scenes), contrast(matching))


def test_pairs_of_one_scene_do_not_contrast() -> None:
    """Keeps away: images that are pushed apart although they are the same one."""
    matching = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    ours = contrast(matching, torch.tensor([0, 0, 1, 1]))
    rows = [[0, 2, 3], [1, 2, 3], [2, 0, 1], [3, 0, 1]]
    expected = -sum(matching[r, c].log_softmax(0)[0] for r, c in enumerate(rows)) / 4
    torch.testing.assert_close(ours, expected)
    [gradient] = torch.autograd.grad(ours, matching)
    assert gradient[0, 1] == gradient[1, 0] == gradient[2, 3] == gradient[3, 2] == 0
    assert float(contrast(matching.detach(), torch.zeros(4))) == 0
