"""Attention in bfloat16 by two matrix products, on AMD processors that have bfloat16 ones.

torch's fused kernel takes MKL's products, which an AMD processor computes in float32 after copying;
oneDNN's, which `torch.matmul` takes, are the processor's own. Forward and backward take less than
half of the time; on an Intel processor torch's own choice stands (docs/performance.md).
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cc_prep.models.cpu import bfloat16
from cc_prep.models.cpu.linear import has_onednn_on_amd

# Scores are kept for the backward pass, which the fused kernel recomputes. Above this size that
# memory is worth more than the time.
MAX_SCORES = 2**25


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """`F.scaled_dot_product_attention` of [B, heads, L, D] and [B, heads, M, D].

    Args:
        mask: Bool that spreads to [B, heads, L, M], at least one True in each row; or numbers that
            are added to the scores. In bfloat16 on a CPU that has its products, scores are rounded
            to it, and kept for the backward pass.
    """
    scores = query.shape[:-1].numel() * key.shape[-2]
    if (
        query.dtype != torch.bfloat16
        or query.device.type != "cpu"
        or scores > MAX_SCORES
        or torch.compiler.is_compiling()
        or not has_bfloat16_products()
    ):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    products = torch.matmul(query * query.shape[-1] ** -0.5, key.mT)
    if mask is not None:
        products = products + (additive(mask) if mask.dtype == torch.bool else mask).to(query.dtype)
    mixed: Tensor = torch.matmul(products.softmax(-1).to(value.dtype), value)
    return mixed


def additive(mask: Tensor) -> Tensor:
    """0 where a bool mask is True and −∞ elsewhere, float32: what is added to scores."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, float("-inf"))


@cache
def has_bfloat16_products() -> bool:
    """Whether this is an AMD processor that multiplies bfloat16, and torch has oneDNN for it."""
    return has_onednn_on_amd() and bfloat16.is_native()
