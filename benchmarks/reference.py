"""The paper's VQGAN with random weights; what the references do otherwise, to compare with ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from cc_prep.models import clip, linear, vqgan
from cc_train.models.procedure_encoder import ProcedureEncoder


@cache
def codec() -> vqgan.VQGAN:
    """The f16-1024 VQGAN's sizes; the same weights in every process."""
    torch.manual_seed(0)
    return vqgan.VQGAN(vqgan.Config()).eval()


def torchs_products() -> None:
    """For the rest of the process linear layers are torch's own, whatever the processor."""
    linear.has_onednn_on_amd = lambda: False  # type: ignore[assignment]


class Stored(nn.Module):
    """Attention as torch's module has it, every head's weights kept; of the same parameters."""

    def __init__(self, own: clip.Attention) -> None:
        super().__init__()
        width = own.out_proj.in_features
        self.module = nn.MultiheadAttention(width, own.heads, batch_first=True)
        self.module.in_proj_weight, self.module.in_proj_bias = own.in_proj_weight, own.in_proj_bias
        self.module.out_proj = own.out_proj  # type: ignore[assignment]

    def forward(self, x: Tensor, causal: bool, mask: Tensor) -> Tensor:
        out: Tensor = self.module(x, x, x, attn_mask=~mask, average_attn_weights=False)[0]
        return out


def as_the_reference_attends(encoder: ProcedureEncoder) -> None:
    """Replaces an encoder's attention, once."""
    for block in encoder.transformer.resblocks:
        if isinstance(block.attn, clip.Attention):
            block.attn = Stored(block.attn)


@contextmanager
def swish() -> Iterator[None]:
    """The VQGAN's activation in two operations."""
    own, vqgan.swish = vqgan.swish, lambda x: x * torch.sigmoid(x)
    try:
        yield
    finally:
        vqgan.swish = own
