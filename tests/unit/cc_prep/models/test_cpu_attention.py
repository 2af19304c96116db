"""Attention in bfloat16: as exact as its inputs, and by its own products only where they pay."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.models import cpu
from cc_prep.models.cpu import additive, attention

ROWS = torch.ones(5, 7, dtype=torch.bool).tril(3)


def inputs(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)
    query, key, value = (torch.randn(s, generator=generator).to(dtype) for s in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_()


@pytest.mark.parametrize("mask", [None, ROWS, additive(ROWS) / 2], ids=["none", "bool", "added"])
def test_bfloat16_is_near_float32(monkeypatch: pytest.MonkeyPatch, mask: Tensor | None) -> None:
    """Keeps away: a scale, a mask or a gradient that differs from torch's own attention."""
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: True)
    own = inputs(torch.bfloat16)
    exact = [part.detach().float().requires_grad_() for part in own]
    mixed = attention(*own, mask)
    expected = F.scaled_dot_product_attention(*exact, attn_mask=mask)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), expected, atol=0.03, rtol=0.03)
    mixed.sum().backward()
    expected.sum().backward()
    for part, other in zip(own, exact, strict=True):
        assert part.grad is not None
        assert other.grad is not None
        torch.testing.assert_close(part.grad.float(), other.grad, atol=0.05, rtol=0.05)


def test_what_is_hidden_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a mask whose −∞ becomes a large but finite number in bfloat16."""
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: True)
    query, key, value = (part.detach() for part in inputs(torch.bfloat16))
    before = attention(query, key, value, ROWS)
    value[:, :, 4:] = 1e30
    after = attention(query, key, value, ROWS)
    assert torch.equal(before[:, :, 0], after[:, :, 0]), "row 0 sees columns 0 to 3 alone"


@pytest.mark.parametrize("reason", ["float32", "large", "no products"])
def test_elsewhere_it_is_torch_own(monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """Keeps away: other numbers in float32, and scores that take gigabytes at the paper's sizes."""
    monkeypatch.setattr(cpu, "has_bfloat16_products", lambda: reason != "no products")
    if reason == "large":
        monkeypatch.setattr(cpu, "MAX_SCORES", 2 * 3 * 5 * 7 - 1)
    own = inputs(torch.float32 if reason == "float32" else torch.bfloat16)
    assert torch.equal(attention(*own, ROWS), F.scaled_dot_product_attention(*own, attn_mask=ROWS))


@pytest.mark.parametrize(
    ("flags", "able"),
    [({"avx2", "avx512_bf16"}, True), ({"amx_bf16"}, True), ({"avx2"}, False), ((), False)],
)
def test_its_products_are_of_x86_processors_that_have_them(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], able: bool
) -> None:
    """Keeps away: emulated products, and a processor on which nothing was compared (no flags)."""
    monkeypatch.setattr(cpu, "instructions", lambda: frozenset(flags))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    assert cpu.has_bfloat16_products.__wrapped__() == able
