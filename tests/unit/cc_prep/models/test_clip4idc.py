"""CLIP4IDC's similarities."""

from __future__ import annotations

import torch

from cc_prep.models.clip4idc import CLIP4IDC, Config

CLIP = Config(
    embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
    text_width=64, text_layers=1,
)  # fmt: skip


def test_similarities_are_the_same_under_autocast() -> None:
    """Keeps away: logits of up to 100 that bfloat16 rounds to half a unit."""
    torch.manual_seed(0)
    network = CLIP4IDC(CLIP)
    network.logit_scale.data.fill_(100.0).log_()
    text, pairs, tokens = torch.randn(5, 16), torch.randn(4, 16), torch.randn(3, 5, 64)
    with torch.no_grad():
        expected = network.similarity(text, pairs), *network.image_similarity(tokens)
        with torch.autocast("cpu", torch.bfloat16):
            actual = network.similarity(text, pairs), *network.image_similarity(tokens)
            rounded = network.similarity(text.bfloat16(), pairs.bfloat16())
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.equal(ours, theirs)
    assert rounded.dtype == torch.float32
