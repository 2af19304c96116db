"""The paper's VQGAN with random weights, and code of the references, to compare with ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor, nn

from cc_prep.models import clip, clip4idc, cpu, vqgan
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder

# CLIP4IDC on ViT-B/32, as published: CLIP has positions for longer captions than ours.
VIT_B_32 = clip4idc.Config.model_construct(
    embedding=512, resolution=224, patch=32, vision_width=768, vision_layers=12, intra_layers=9,
    context=77, text_width=512, text_layers=12,
)  # fmt: skip


@cache
def codec() -> vqgan.VQGAN:
    """The f16-1024 VQGAN's sizes; the same weights in every process."""
    torch.manual_seed(0)
    return vqgan.VQGAN(vqgan.Config()).eval()


def torchs_products() -> None:
    """Makes linear layers use torch's own products for the rest of the process, on any CPU."""
    cpu.has_onednn_on_amd = lambda: False  # type: ignore[assignment]


class Block(nn.Module):
    """One of CLIP's blocks as ProCap has it, [L, B, D], of the parameters of one of ours.

    Attention by torch's module, asked for its weights; an additive mask; QuickGELU written out.
    """

    def __init__(self, own: clip.Block) -> None:
        super().__init__()
        width = own.attn.out_proj.in_features
        self.attn = nn.MultiheadAttention(width, own.attn.heads)
        self.attn.in_proj_weight = own.attn.in_proj_weight
        self.attn.in_proj_bias = own.attn.in_proj_bias
        self.attn.out_proj = own.attn.out_proj  # type: ignore[assignment]
        self.ln_1, self.ln_2, self.mlp = own.ln_1, own.ln_2, own.mlp

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=True, attn_mask=mask)[0]
        hidden = self.mlp.c_fc(self.ln_2(x))
        out: Tensor = x + self.mlp.c_proj(hidden * torch.sigmoid(1.702 * hidden))
        return out


class Transformer(nn.Module):
    """ProCap's transformer, in place of ours."""

    def __init__(self, own: clip.Transformer) -> None:
        super().__init__()
        blocks = (block for block in own.resblocks if isinstance(block, clip.Block))
        self.resblocks = nn.ModuleList(Block(block) for block in blocks)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        additive = torch.zeros(mask.shape).masked_fill_(~mask, float("-inf"))
        x = x.transpose(0, 1)
        for block in self.resblocks:
            x = block(x, additive)
        return x.transpose(0, 1)


def as_the_reference_encodes(encoder: ProcedureEncoder) -> None:
    """Replaces an encoder's transformer, once; it then computes all rows of the last block too."""

    def forward_frames(control: Tensor, frames: Tensor, reference_quirks: bool = False) -> Tensor:
        return encoder(control, frames, reference_quirks)[:, control.shape[1] :]

    if isinstance(encoder.transformer, clip.Transformer):
        encoder.transformer = Transformer(encoder.transformer)  # type: ignore[assignment]
        encoder.forward_frames = forward_frames  # type: ignore[method-assign]


def recompute_all(
    logits: Callable[[Tensor, Tensor], Tensor], memory: Tensor, begin: int, pad: int, unknown: int,
    length: int,
) -> Tensor:  # fmt: skip
    """Greedy ids int64 [B, length] from `begin` on, all positions computed again for each word.

    logits: of ids [B, length] and of memory [B, n, D], [B, length, words]. unknown: a word that is
    never chosen. What the last pass says has no place left.
    """
    ids = torch.full((len(memory), length), pad)
    ids[:, 0] = begin
    for position in range(length):
        next_logits = logits(ids, memory)[:, position]
        next_logits[:, unknown] = -1e10
        if position + 1 < length:
            ids[:, position + 1] = next_logits.argmax(-1)
    return ids


@contextmanager
def swish() -> Iterator[None]:
    """The VQGAN's activation in two operations."""
    own, vqgan.swish = vqgan.swish, lambda x: x * torch.sigmoid(x)
    try:
        yield
    finally:
        vqgan.swish = own
