"""The mimetic start of attention: what it looks at before any training."""

from __future__ import annotations

import torch

from cc_prep.models.clip import Transformer
from cc_train.layers import mimetic


def test_attention_starts_by_subtracting_what_looks_alike() -> None:
    torch.manual_seed(0)
    transformer = Transformer(128, 1)
    mimetic.start(transformer)
    attention = transformer.resblocks[0].attn
    query, key, value = attention.in_proj_weight.detach().chunk(3)
    for head in range(2):
        part = slice(64 * head, 64 * (head + 1))
        look = query[part].T @ key[part]
        assert 0.3 < look.diagonal().mean() < 1.2
        assert look.fill_diagonal_(0).mean().abs() < 0.02
    mix = value.T @ attention.out_proj.weight.detach().T
    assert -0.5 < mix.diagonal().mean() < -0.3
    assert torch.linalg.matrix_rank(query[:64].T @ key[:64]) == 64


def test_a_changed_token_stands_out_before_any_training() -> None:
    """Two frames of the same eight tokens but one: the block moves that one most apart."""
    torch.manual_seed(0)
    transformer = Transformer(128, 1)
    mimetic.start(transformer)
    tokens = torch.randn(8, 128) * 3
    after = tokens.clone()
    after[5] = torch.randn(128) * 3
    with torch.inference_mode():
        attention = transformer.resblocks[0].attn
        both = torch.cat((tokens, after))[None]
        ratio = (both + 2 * attention(both))[0].norm(dim=-1) / both[0].norm(dim=-1)
    unchanged = torch.cat((ratio[:5], ratio[6:13], ratio[14:]))
    assert min(ratio[5], ratio[13]) > unchanged.mean()
