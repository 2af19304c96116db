"""The caption decoder without the reference's slips is a plain post-norm transformer decoder."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cc_train.layers.caption_decoder import EPS, CaptionDecoder, DecoderSettings, Layer

WORDS = 11
SIZES = DecoderSettings(width=16, heads=4, hidden=24, layers=2, length=6, dropout=0.0)


def torchs(layer: Layer) -> nn.TransformerDecoderLayer:
    """torch's own layer with the weights of ours."""
    other = nn.TransformerDecoderLayer(
        SIZES.width, SIZES.heads, SIZES.hidden, 0.0, layer_norm_eps=EPS, batch_first=True
    )
    pairs = ((other.self_attn, layer.selfattn.layer), (other.multihead_attn, layer.attention.layer))
    for theirs, ours in pairs:
        weights = (ours.wq.weight, ours.wk.weight, ours.wv.weight)
        theirs.in_proj_weight.data.copy_(torch.cat(weights))
        theirs.out_proj.weight.data.copy_(ours.wo.weight)
        for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
            bias.data.zero_()
    hidden = layer.feedforward.layer
    other.linear1.load_state_dict(hidden.linear1.state_dict())
    other.linear2.load_state_dict(hidden.linear2.state_dict())
    parts = (layer.selfattn, layer.attention, layer.feedforward)
    for part, norm in zip(parts, (other.norm1, other.norm2, other.norm3), strict=True):
        norm.weight.data.copy_(part.layernorm.gamma)
        norm.bias.data.copy_(part.layernorm.beta)
    return other


@torch.inference_mode()
def test_it_is_torch_s_decoder() -> None:
    """Keeps away: scores divided by the root of the model's width, which flattens attention, and
    the unbiased deviation: the reference's slips in every new training."""
    torch.manual_seed(0)
    decoder = CaptionDecoder(WORDS, SIZES).eval()
    for name, parameter in decoder.named_parameters():
        if name.endswith(("gamma", "beta")):
            parameter.add_(0.3 * torch.randn_like(parameter))
    ids, memory = torch.randint(0, WORDS, (2, 6)), 3 * torch.randn(2, 5, 16)
    x = math.sqrt(SIZES.width) * F.embedding(ids, decoder.out.weight) + decoder.positions
    causal = nn.Transformer.generate_square_subsequent_mask(6)
    for layer in decoder.layers:
        x = torchs(cast("Layer", layer))(x, memory, tgt_mask=causal, tgt_is_causal=True)
    expected: Tensor = decoder.out(x)
    torch.testing.assert_close(decoder(ids, memory), expected, atol=1e-5, rtol=1e-4)
    slips = CaptionDecoder(WORDS, SIZES, reference_quirks=True).eval()
    slips.load_state_dict(decoder.state_dict())
    assert (slips(ids, memory) - expected).abs().max() > 0.01
