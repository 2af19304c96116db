"""What the model is asked, word by word, and what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cc_prep.errors import UserError
from cc_train.systems.mllm import prompts
from cc_train.systems.mllm.prompts import Prompt
from cc_train.text import IGNORED
from tests import vlm_factory

QUESTION = "Describe the change between the before image and the after image."


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], QUESTION),
        (["red car"], f"{QUESTION} Entity: red car."),
        (["red car", "tree", "{}"], f"{QUESTION} Entity: red car, tree, {{}}."),
    ],
)
def test_entities_follow_the_question(names: list[str], text: str) -> None:
    """Keeps away: an empty list of entities that is named all the same; braces in a name."""
    assert Prompt().with_entities(names) == text


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("smolvlm", "<s>Before: F{}F After: F{}F " + QUESTION),
        ("internvl", "<s>Before: <img>{}</img> After: <img>{}</img> " + QUESTION),
        ("qwen3_vl", "<s>Before: V{}W After: V{}W " + QUESTION),
        ("instructblip", "{}{}<s>" + QUESTION),
    ],
)
def test_prompts_mark_two_images(folder: Path, family: str, text: str) -> None:
    """Keeps away: one image in the prompt, or marks that the model was not trained with."""
    one = vlm_factory.captioner(folder, family)
    written = one.base.tokenizer.decode(one.prompt_tokenizer.question())
    marker = one.base.family.marker * 4
    text = text.replace("F{}F", "<fake_token_around_image><global-img>{}<fake_token_around_image>")
    text = text.replace("V{}W", "<|vision_start|>{}<|vision_end|>")
    assert written == text.replace("{}", marker)


def test_a_chat_template_writes_the_prompt_where_there_is_one(folder: Path) -> None:
    """Keeps away: an instructed model that is asked without the turns that it was taught."""
    one = vlm_factory.captioner(folder, "qwen2_5_vl")
    one.base.tokenizer.chat_template = (
        "{% for m in messages %}USER {% for c in m['content'] %}{% if c['type'] == 'image' %}"
        "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT{% endif %}"
    )
    shown = "<|vision_start|>" + 4 * "<|image_pad|>" + "<|vision_end|>"
    written = one.prompt_tokenizer.prompt_text(QUESTION)
    assert written == f"USER Before: {shown} After: {shown}{QUESTION} ASSISTANT"
    one.base.tokenizer.chat_template = "{{ messages[0]['content'][0]['text'] }}<|image_pad|>"
    with pytest.raises(UserError, match="a prompt has 4 places for images, where 2 images of 4"):
        one.prompt_tokenizer.question()


def test_a_question_with_marks_of_its_own_is_refused(folder: Path) -> None:
    """Keeps away: places that no image fills, which a model fills with whatever comes."""
    with pytest.raises(UserError, match="a prompt has 9 places for images"):
        vlm_factory.captioner(folder, "smolvlm", prompt={"text": "What is <image> here?"})


def test_a_prompt_that_does_not_fit_is_refused(folder: Path) -> None:
    """Keeps away: positions beyond the context, after hours of training."""
    many = {"max_new_tokens": 2040}
    with pytest.raises(UserError, match=r"tokens and a caption of 2040 do not fit .* 2048"):
        vlm_factory.captioner(folder, "instructblip", generation=many)


def test_labels_are_the_captions_next_tokens(folder: Path) -> None:
    """Keeps away: a loss on the prompt, or on the padding of a shorter neighbour."""
    batch = prompts.training_batch([[5, 6, 7], [5]], [[8, 2], [9, 9, 2]], 0)
    assert batch["ids"].tolist() == [[5, 6, 7, 8, 2], [5, 9, 9, 2, 0]]
    none = IGNORED
    assert batch["labels"].tolist() == [[none, none, 8, 2, none], [9, 9, 2, none, none]]
    assert batch["last"].tolist() == [2, 0]
    assert batch["attention"].sum(1).tolist() == [5, 4]
    ids, attention = prompts.left_padded([[5, 6, 7], [5]], 0)
    assert ids.tolist() == [[5, 6, 7], [0, 0, 5]]
    assert torch.equal(attention, (ids > 0).long())


def test_captions_come_back_as_they_were_said(folder: Path) -> None:
    """Keeps away: marks, or what follows the end, in a caption."""
    tokenizer = vlm_factory.captioner(folder, "blip2").prompt_tokenizer
    ids = tokenizer.caption("the red cube moved")
    assert ids[-1] == tokenizer.end
    assert tokenizer.decode([*ids, *tokenizer.caption("and more")]) == "the red cube moved"
    assert len(tokenizer.caption("the red cube " * 40)) == tokenizer.sizes.length
