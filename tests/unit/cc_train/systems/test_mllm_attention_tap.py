"""Attention as the tap reads it, against the weights that transformers itself returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cc_train.systems.mllm import attention_tap, families
from cc_train.systems.mllm.attention_tap import Tap
from tests import vlm_factory

CAPTIONS = ["the red cube moved to the left", "there is no change"]
ENTITIES = [["red cube"], []]  # prompts of two lengths, so one of them is padded
ALL = ("instructblip", "blip2", "internvl", "smolvlm", "qwen2_5_vl", "qwen3_vl")


def with_adapters(one: Any) -> None:
    """Adapters that do something: fresh ones give nothing."""
    for name, parameter in one.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)


def weights_of(one: Any, module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits, and the weights [B, heads, N, N] of an attention module, by transformers' `eager`."""
    outputs: list[Tensor] = []
    handle = module.register_forward_hook(lambda *call: outputs.append(call[2][1]))
    one.base.model.set_attn_implementation("eager")
    try:
        logits = one(batch, batch["ids"].shape[1]).logits
    finally:
        one.base.model.set_attn_implementation(attention_tap.IMPLEMENTATION)
        handle.remove()
    return logits, outputs[0]


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_taps_read_what_eager_attention_computes(folder: Path, family: str) -> None:
    """Keeps away: attention of other heads, scales or masks than the network's own; and a padding
    mask that is dropped in silence, because transformers does not know our function."""
    one = vlm_factory.captioner(folder, family)
    with_adapters(one)
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    row = one.base.family
    module, _ = families.module_at(one.model, row.language, -1)
    queries = batch["last"][:, None] + torch.arange(2)
    language = Tap(module, "rows", queries)
    taps, eyes = [language], None
    if not family.startswith("qwen"):  # their eyes return no weights; see the next test
        eyes = Tap(families.module_at(one.model, row.vision, -1)[0], row.reading)
        taps.append(eyes)
    length = batch["ids"].shape[1]
    with attention_tap.only(*taps):
        tapped = one(batch, length).logits
    one.base.model.set_attn_implementation("sdpa")
    plain = one(batch, length).logits
    one.base.model.set_attn_implementation(attention_tap.IMPLEMENTATION)
    assert torch.equal(tapped, plain)
    logits, weights = weights_of(one, module, batch)
    real = batch["attention"].bool()
    torch.testing.assert_close(logits[real], tapped[real], atol=1e-5, rtol=1e-5)
    (rows,) = language.take()
    chosen = weights.mean(1)[torch.arange(2)[:, None], queries]
    torch.testing.assert_close(rows.probabilities, chosen, atol=1e-5, rtol=0)
    if eyes is not None:
        (rows,) = eyes.take()
        means = weights_of(one, eyes.module, batch)[1].mean(1)
        expected = means[:, :1] if row.reading == "cls" else means.mean(1, keepdim=True)
        torch.testing.assert_close(rows.probabilities, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_qwens_eyes_are_read_image_by_image(folder: Path) -> None:
    """Keeps away: attention across two images, or before the rotation of queries and keys."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

    one = vlm_factory.captioner(folder, "qwen2_5_vl")
    module, _ = families.module_at(one.model, one.base.family.vision, -1)
    tap, inputs = Tap(module, "received"), []
    handle = module.register_forward_pre_hook(
        lambda part, args, options: inputs.append((args, options)), with_kwargs=True
    )
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    with attention_tap.only(tap):
        one(batch, 1)
    handle.remove()
    ((states, *_), options) = inputs[0]
    query, key, _ = module.qkv(states).view(len(states), 3, module.num_heads, -1).unbind(1)
    query, key = apply_rotary_pos_emb_vision(query, key, *options["position_embeddings"])
    calls = tap.take()
    assert len(calls) == 4  # two pairs
    for number, call in enumerate(calls):
        part = slice(16 * number, 16 * number + 16)
        scores = torch.einsum("qhd,khd->hqk", query[part], key[part]) * module.scaling
        expected = scores.softmax(-1).mean((0, 1))
        torch.testing.assert_close(call.probabilities[0, 0], expected, atol=1e-5, rtol=0)


def test_a_tap_is_off_where_it_was_not_opened(folder: Path) -> None:
    """Keeps away: beams, whose rows are other sentences, among the rows that a loss reads."""
    one = vlm_factory.captioner(folder, "instructblip")
    tap = Tap(families.module_at(one.model, one.base.family.vision, -1)[0], "cls")
    attention_tap.attach(tap)
    one.caption(vlm_factory.pairs(), beams=2)
    assert tap.take() == []
    one(vlm_factory.batch(one, CAPTIONS, ENTITIES), 1)
    assert len(tap.take()) == 1


@pytest.mark.parametrize("family", ["instructblip", "qwen3_vl"])
def test_checkpointed_layers_have_the_same_gradients(folder: Path, family: str) -> None:
    """Keeps away: a tap without a gradient, or with other saved tensors in the second pass."""
    gradients = []
    for how in ("none", "non_reentrant"):
        one = vlm_factory.captioner(folder, family, model={"checkpointing": how})
        with_adapters(one)
        row = one.base.family
        tap = Tap(families.module_at(one.model, row.vision, -1)[0], row.reading)
        attention_tap.attach(tap)
        one.train()
        torch.manual_seed(1)
        one(vlm_factory.batch(one, CAPTIONS, ENTITIES), 1)
        rows = tap.take()
        sum(call.probabilities[..., :5].sum() for call in rows).backward()  # type: ignore[union-attr]
        gradients.append(
            {n: p.grad for n, p in one.named_parameters() if p.grad is not None and "lora_B" in n}
        )
    assert gradients[0].keys() == gradients[1].keys() != set()
    assert any(gradient.abs().max() > 0 for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name])
