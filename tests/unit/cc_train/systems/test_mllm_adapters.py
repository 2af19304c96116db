"""Adapters: on the named layers alone, of the ranks that are asked for, and nothing else stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cc_prep.errors import UserError
from cc_train.systems.mllm import adapters, families
from cc_train.systems.mllm.adapters import Lora
from tests import vlm_factory

ALL = ("instructblip", "blip2", "internvl", "smolvlm", "qwen2_5_vl", "qwen3_vl")
CAPTIONS, ENTITIES = ["there is no change"], [["red cube"]]


def ranks(one: Any) -> set[tuple[str, int]]:
    """Name of the layer and rank of every adapter."""
    return {
        (name.removeprefix("model.").partition(".lora_A")[0], len(value))
        for name, value in one.named_parameters()
        if "lora_A" in name
    }


@pytest.mark.parametrize("family", ALL)
def test_adapters_have_the_rank_of_their_part(folder: Path, family: str) -> None:
    """Keeps away: layers that another release names otherwise, and that stay frozen in silence."""
    one = vlm_factory.captioner(folder, family, lora={"vision": 2, "bridge": 3, "language": 5})
    parts: dict[int, set[str]] = {2: set(), 3: set(), 5: set()}
    for name, rank in ranks(one):
        parts[rank].add(name)
    assert all("vision" in name or "visual" in name for name in parts[2])
    assert all(any(w in n for w in ("qformer", "merger", "connector", "projector"))
               for n in parts[3])  # fmt: skip
    assert all("language_model" in name or "text_model" in name for name in parts[5])
    assert len(parts[5]) == 6  # query, key and value of two layers
    assert all(parts.values())
    trained = {name for name, value in one.named_parameters() if value.requires_grad}
    assert trained == set(one.state_dict()) == {n for n in trained if "lora_" in n}


def test_adapters_are_scaled_as_asked(folder: Path) -> None:
    """Keeps away: a scale that is rounded to nothing, by which nothing is ever learned."""
    one = vlm_factory.captioner(folder, "smolvlm", lora={"alpha": 0.1})
    layers = [m for m in one.modules() if hasattr(m, "lora_A")]
    scales = {scale for layer in layers for scale in layer.scaling.values()}
    assert sorted(scales) == pytest.approx([0.1])


def test_a_rank_of_nought_leaves_a_part_frozen(folder: Path) -> None:
    """Keeps away: an ablation that trains what it says it froze."""
    one = vlm_factory.captioner(folder, "smolvlm", lora={"vision": 0, "bridge": 0})
    assert {rank for _, rank in ranks(one)} == {8}


def test_layers_that_are_not_there_are_refused(folder: Path) -> None:
    """Keeps away: a pattern with a slip in it, by which nothing is adapted."""
    with pytest.raises(UserError, match=r"no layer .* as its language adapters need \(.*wq\)"):
        vlm_factory.captioner(folder, "smolvlm", lora={"targets": r".*\.wq"})
    with pytest.raises(UserError, match="no regular expression"):
        vlm_factory.captioner(folder, "smolvlm", lora={"targets": "("})
    with pytest.raises(UserError, match=r"the language part, which lora\.language=0 leaves out"):
        adapters.expressions(families.SMOLVLM, Lora(targets=r".*\.wq", language=0))
    with pytest.raises(UserError, match=r"Set lora\.vision=0; it has such layers as") as caught:
        adapters.layers_of(torch.nn.Sequential(torch.nn.Linear(1, 1)), {"vision": "eyes"})
    assert "lora.targets" not in str(caught.value), "which are the language part's"


@pytest.mark.parametrize("family", ["instructblip", "qwen3_vl"])
@torch.no_grad()
def test_stored_and_merged_adapters_say_the_same(folder: Path, family: str) -> None:
    """Keeps away: a checkpoint that lacks an adapter, and a merge that scales it otherwise."""
    one = vlm_factory.captioner(folder, family)
    for name, parameter in one.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    logits = one(batch, 5).logits
    other = vlm_factory.captioner(folder, family)
    assert (other(batch, 5).logits - logits).abs().max() > 1e-4
    other.load_state_dict(one.state_dict())
    torch.testing.assert_close(other(batch, 5).logits, logits)
    adapters.merge(other.model)
    torch.testing.assert_close(other(batch, 5).logits, logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(RuntimeError, match="other adapters"):
        other.load_state_dict({})
