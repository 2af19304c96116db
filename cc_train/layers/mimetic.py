"""An initialisation for small transformers on small data: attention as trained ones have it.

The maps of queries and keys begin nearly equal, so a token attends to tokens that resemble it: to
itself, its neighbours and its own place in the other frames. The product of the value and output
maps begins near minus the identity, so what a token attends to is subtracted from it. Over the
frames of a sequence this detects changes before the first training step.
Source: Trockman and Kolter, "Mimetic initialization of self-attention layers", ICML 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cc_prep.models.clip import Attention, Transformer

LOOK, LOOK_NOISE = 0.7, 0.7  # the paper's β1, α1
MIX, MIX_NOISE = 0.4, 0.4  # its β2, α2


@torch.no_grad()
def start(transformer: Transformer) -> None:
    """Sets the attention weights of all blocks, in place, drawn by torch's global generator."""
    for block in transformer.resblocks:
        attention = block.attn
        assert isinstance(attention, Attention)
        width = attention.in_proj_weight.shape[1]
        each = width // attention.heads
        # Each head has a map of its own, of the rank that it can have.
        looks = [_factors(LOOK, LOOK_NOISE, width, each) for _ in range(attention.heads)]
        query, key = (torch.cat(part) for part in zip(*looks, strict=True))
        value, out = _factors(-MIX, MIX_NOISE, width, width)
        attention.in_proj_weight.copy_(torch.cat((query, key, value)))
        attention.out_proj.weight.copy_(out.T)


def _factors(identity: float, noise: float, width: int, rank: int) -> tuple[Tensor, Tensor]:
    """A, B [rank, width] with AᵀB near identity · I + noise · Z, Z of variance 1/width."""
    product = identity * torch.eye(width) + noise * torch.randn(width, width) / width**0.5
    left, sizes, right = torch.linalg.svd(product)
    root = sizes[:rank].sqrt()
    return (left[:, :rank] * root).T.contiguous(), root[:, None] * right[:rank]
