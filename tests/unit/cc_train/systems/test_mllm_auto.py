"""A model of which nothing is known but its processor and its language model's attention."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_train.captioner import Caption
from cc_train.evaluation import score_captioner
from cc_train.systems.mllm import images
from cc_train.systems.mllm.batches import AttentionControl
from cc_train.systems.mllm.objective import MllmObjective
from tests import vlm_factory

CAPTIONS, ENTITIES = ["the red cube moved to the left"], [["red cube"]]


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    """Where a model with a processor beside it lies."""
    return vlm_factory.add_processor(vlm_factory.save(folder / "auto", "qwen2_5_vl")).parent


def test_a_processor_and_our_table_make_the_same_of_a_pair(folder: Path) -> None:
    """Keeps away: images that a processor takes for one, or places that it counts otherwise."""
    auto = vlm_factory.captioner(folder, "qwen2_5_vl", model={"family": "auto"})
    known = vlm_factory.captioner(folder, "qwen2_5_vl")
    assert auto.base.family.name == "auto"
    assert auto.prompt_tokenizer.question(["red cube"]) == known.prompt_tokenizer.question(
        ["red cube"]
    )
    assert (auto.shape.places, auto.shape.tokens) == (4, (2, 2))
    batch = vlm_factory.batch(auto, CAPTIONS, ENTITIES)
    with torch.no_grad():
        logits = [one(batch, 5).logits for one in (auto, known)]
    torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)
    (caption,) = auto.caption(vlm_factory.pairs(1), entities=ENTITIES)
    assert caption.attention is not None
    assert caption.score is not None


def test_a_processor_is_asked_once_for_each_question(folder: Path) -> None:
    """Keeps away: two blank images through a processor for each sample of each batch."""
    auto = vlm_factory.captioner(folder, "qwen2_5_vl", model={"family": "auto"})
    with patch.object(images, "chat_tokens", wraps=images.chat_tokens) as asked:
        first = [auto.prompt_tokenizer.question(["a mug"]) for _ in range(3)]
        other = auto.prompt_tokenizer.question(["a cup"])
    assert asked.call_count == 2
    assert first[0] == first[1] == first[2] != other
    first[0].clear()  # what a caller does to its own list
    assert auto.prompt_tokenizer.question(["a mug"]) == first[1]


def test_scoring_a_captioner_costs_no_second_pass(folder: Path) -> None:
    """Keeps away: attention and scores of each caption that an evaluation never reads."""
    auto = vlm_factory.captioner(folder, "qwen2_5_vl", model={"family": "auto"})

    def predict(*_: object) -> Iterator[tuple[None, Caption]]:
        yield None, auto.caption(vlm_factory.pairs(1), entities=ENTITIES)[0]

    with (
        patch.object(score_captioner, "predict", predict),
        patch.object(auto, "_read_again", wraps=auto._read_again) as second_pass,
    ):
        console = Console(quiet=True)
        texts = score_captioner._captions(auto, [Mock(key="k")], 1, False, console)
        assert second_pass.call_count == 0
        (whole,) = auto.caption(vlm_factory.pairs(1), entities=ENTITIES)
    assert second_pass.call_count == 1
    assert whole.attention is not None
    assert texts == {"k": whole.text}


def test_a_processor_that_takes_any_size_is_asked_about_the_size_that_is_set(
    tmp_path: Path,
) -> None:
    """Keeps away: prompts with the places of larger images than those that come."""
    vlm_factory.add_processor(vlm_factory.save(tmp_path, "qwen2_5_vl"), 448)
    for size, side in ((56, 2), (112, 4)):
        model = {"family": "auto", "image_size": size}
        one = vlm_factory.captioner(tmp_path, "qwen2_5_vl", model=model)
        assert one.shape.tokens == (side, side)
        assert len(one.caption(vlm_factory.pairs(1, size=size))) == 1


def test_attention_of_an_unknown_language_model_is_controlled(folder: Path) -> None:
    """Keeps away: a family without a table that can't be controlled at all."""
    one = vlm_factory.captioner(
        folder, "qwen2_5_vl", model={"family": "auto"}, lora={"vision": 0, "bridge": 0}
    )
    control = AttentionControl(where="llm", weight=1.0)
    objective = MllmObjective(one, lambda captioner: {}, control, 0.0, 1.0, "cpu")
    batch = vlm_factory.batch(
        one, CAPTIONS, ENTITIES, mask=torch.tensor([[1.0, 0.2, 0.2, 0.0]]),
        has_mask=torch.tensor([True]),
    )  # fmt: skip
    losses = objective.losses("model", batch, 0, objective.denominators(batch))
    losses["total"].backward()
    gradients = [p.grad for n, p in one.named_parameters() if "lora_B" in n and "k_proj" in n]
    assert gradients
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
    with pytest.raises(UserError, match="the vision network of family auto is not known"):
        MllmObjective(one, lambda captioner: {}, AttentionControl(), 0.0, 1.0, "cpu")
