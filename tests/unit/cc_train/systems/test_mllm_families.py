"""Two images in a prompt: each in its place, of its own pair, in the order before and after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.weights import folders
from cc_train.systems.mllm import attention_loss, attention_tap, families, images, loading
from cc_train.systems.mllm.attention_tap import Tap
from tests import vlm_factory

ALL = ("instructblip", "blip2", "internvl", "smolvlm", "qwen2_5_vl", "qwen3_vl")
CAPTIONS = ["the red cube moved to the left", "there is no change"]
ENTITIES = [["red cube"], []]


def features(one: Any, before_after: Tensor, batch: dict[str, Tensor]) -> list[Tensor]:
    """The image tokens of each image, in the order in which the images entered."""
    more = {name: value for name, value in batch.items() if name.startswith("qformer")}
    output = one.base.model.get_image_features(
        **one.image_inputs(before_after), **more, return_dict=True
    )
    pooled = output.pooler_output
    whole = torch.cat(list(pooled)) if isinstance(pooled, (list, tuple)) else pooled
    return list(whole.reshape(-1, one.shape.places, whole.shape[-1]))


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_each_place_has_the_tokens_of_its_own_image(folder: Path, family: str) -> None:
    """Keeps away: after before before, images of the neighbouring pair, or tokens that a model
    drops in silence."""
    one = vlm_factory.captioner(folder, family)
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    length = batch["ids"].shape[1]
    tokens, of_words = features(one, batch["before_after"], batch), {}
    handle = one.base.model.get_decoder().register_forward_pre_hook(
        lambda part, args, options: of_words.update(options), with_kwargs=True
    )
    logits = one(batch, length).logits
    handle.remove()
    words = of_words["inputs_embeds"]
    for number, ids in enumerate(batch["ids"]):
        mine = torch.cat([part.view(-1, part.shape[-1]) for part in tokens[2 * number :][:2]])
        torch.testing.assert_close(words[number][ids == one.prompt_tokenizer.image], mine)
    swapped = one({**batch, "before_after": batch["before_after"].flip(1)}, length).logits
    assert (swapped - logits)[:, -1].abs().max() > 1e-5
    other = batch["before_after"].clone()
    other[1] = vlm_factory.pairs(1, seed=7)[0]
    changed = one({**batch, "before_after": other}, length).logits
    assert torch.equal(changed[0], logits[0])
    assert (changed[1] - logits[1]).abs().max() > 1e-5
    last = one(batch, 4).logits
    torch.testing.assert_close(last, logits[:, -4:])


@pytest.mark.parametrize("family", ["internvl", "smolvlm", "qwen2_5_vl", "qwen3_vl"])
@torch.no_grad()
def test_image_tokens_lie_row_by_row(folder: Path, family: str) -> None:
    """Keeps away: a mask that lies over the wrong tokens of the language model."""
    one = vlm_factory.captioner(folder, family)
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    grey = torch.full_like(batch["before_after"][:1], 100)
    rows, columns = one.shape.tokens
    # Before attention mixes them a token has what lies at its own place: so without attention.
    for module in one.base.model.modules():
        if type(module).__name__.endswith("Attention"):
            for part in module.children():
                if hasattr(part, "weight") and part.weight.ndim == 2:
                    part.weight.zero_()
    plain = features(one, grey, {})[1]
    for row in range(rows):
        for column in range(columns):
            marked = grey.clone()
            height = vlm_factory.SIZE // rows
            place = (
                slice(height * row, height * (row + 1)),
                slice(height * column, height * (column + 1)),
            )
            marked[0, 1][place] = 200
            moved = (features(one, marked, {})[1] - plain).abs().sum(-1)
            assert int(moved.argmax()) == row * columns + column


@torch.no_grad()
def test_slots_are_where_qwens_eyes_have_their_patches(folder: Path) -> None:
    """Keeps away: attention to a patch taken for that to another one, by windows or merge order."""
    one = vlm_factory.captioner(folder, "qwen2_5_vl")
    eyes = one.base.model.model.visual
    rows, columns, merge = 8, 12, 2
    generator = torch.Generator().manual_seed(0)
    row_major = torch.randn(rows * columns, 3 * 2 * 14 * 14, generator=generator)
    inside: list[Tensor] = []
    handle = eyes.blocks[0].register_forward_pre_hook(lambda part, args: inside.append(args[0]))
    grid = torch.tensor([[1, rows, columns]])
    eyes(row_major[images.sequence(rows, columns, merge)], grid_thw=grid)
    handle.remove()
    order = images.sequence(rows, columns, merge, window=2)
    assert torch.equal(inside[0], eyes.patch_embed(row_major)[order])
    assert not torch.equal(order, images.sequence(rows, columns, merge))


def test_patches_are_as_qwens_processor_lays_them() -> None:
    """Keeps away: patches in another order or layout than the weights were trained on."""
    from transformers import Qwen2VLImageProcessor

    size = {"shortest_edge": 56 * 56, "longest_edge": 56 * 56}
    processor = Qwen2VLImageProcessor(size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    pixels = vlm_factory.pairs(1)
    theirs = processor(images=list(pixels[0].numpy()), return_tensors="pt")
    ours = images.patches(images.normalised(pixels, (0.5,) * 3, (0.5,) * 3).flatten(0, 1), 14, 2, 2)
    torch.testing.assert_close(theirs["pixel_values"], ours.flatten(0, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_beams_see_their_own_images(folder: Path, family: str) -> None:
    """Keeps away: images repeated for beams one by one, so that a pair sees before twice; sums of
    log-probabilities of another pair, or with penalties in them; images that are seen again for
    every beam."""
    brief = {"length_penalty": 0.0, "max_new_tokens": 4, "repetition_penalty": 1.0}
    one = vlm_factory.captioner(folder, family, generation=brief)
    sums: list[Tensor] = []
    generate = one.base.model.generate

    def scored(**options: Any) -> Tensor:
        generated = generate(**options, return_dict_in_generate=True, output_scores=True)
        sums.append(generated.sequences_scores.view(2, -1)[:, 0])
        return generated.sequences

    one.base.model.generate = scored
    patches: list[int] = []  # that reach the first layer of the vision network
    layer = families.module_at(one.model, one.base.family.vision, 0)[0]
    layer.register_forward_pre_hook(
        lambda part, args, options: patches.append(
            (args[0] if args else options["hidden_states"]).numel()
        ),
        with_kwargs=True,
    )
    captions = one.caption(vlm_factory.pairs(), 3, ENTITIES)
    assert sum(patches[1:]) == patches[0]  # once more than the search, for the sums
    # Without penalties the search ranks by the same sums.
    assert [c.score for c in captions] == pytest.approx(sums[0].tolist(), abs=1e-3)
    assert [len(c.beams) for c in captions] == [3, 3]


@pytest.mark.parametrize("family", ["smolvlm", "instructblip"])
@torch.no_grad()
def test_a_caption_does_not_depend_on_the_pairs_beside_it(folder: Path, family: str) -> None:
    """Keeps away: a penalty of the padding, of the question's words, or of its end marks."""
    penalty = {"repetition_penalty": 5.0, "max_new_tokens": 12}
    one = vlm_factory.captioner(folder, family, generation=penalty)
    tokenizer = one.prompt_tokenizer
    tokenizer.pad = tokenizer.end  # as for a tokenizer that has no mark for padding
    pairs = vlm_factory.pairs()
    # It wants to say words of the question and then the end; what is penalised comes after X.
    sentence = [*tokenizer.caption("Describe the")[:3], tokenizer.end]
    other = tokenizer.tokenizer.convert_tokens_to_ids("X")
    head = one.base.model.get_output_embeddings()
    steps, plain = iter(sentence * 10), head.forward

    def eager(states: Tensor) -> Tensor:
        logits = plain(states).index_fill(-1, torch.tensor(other), 20.0)
        return logits.index_fill(-1, torch.tensor(next(steps)), 50.0)

    head.forward = eager
    names = [["red cube"] * 9, []]
    questions = [tokenizer.question(one_pair) for one_pair in names]
    spoken = one._generate(pairs, questions, tokenizer.bridge(names, 2), 1)
    assert [row[0] for row in spoken] == [sentence, sentence]


def test_every_word_has_a_map_of_where_it_looked(folder: Path) -> None:
    """Keeps away: maps of tokens beside a caption's words, or of one image alone."""
    one = vlm_factory.captioner(folder, "smolvlm", generation={"max_new_tokens": 20})
    words = ("the", "red", "cube", "moved", "to", "the", "left")
    sentence = one.prompt_tokenizer.caption(" ".join(words))
    tap = Tap(families.module_at(one.model, one.base.family.language, -1)[0], "rows")
    batch = vlm_factory.batch(one, [one.prompt_tokenizer.decode(sentence)], [[]])
    count = len(sentence)
    tap.queries = batch["last"][:, None] + torch.arange(count)
    with attention_tap.only(tap), torch.no_grad():
        one(batch, 1)
    (rows,) = tap.take()
    places = one.places(batch["ids"])[0]
    maps = one._of_words(rows.probabilities[0], places, None, sentence)
    assert maps.words == words
    assert maps.maps.shape == (7, 2, 2)
    assert maps.maps.sum((1, 2)) == pytest.approx(1.0)
    last = [
        n
        for n in range(count - 1)
        if len(one.prompt_tokenizer.decode(sentence[: n + 1]).split()) == 7
    ]
    looked = rows.probabilities[0][last][:, places].sum((0, 1))  # not where it looked to end
    assert maps.maps[6].ravel() == pytest.approx((looked / looked.sum()).numpy())
    (caption,) = one.caption(vlm_factory.pairs(1))
    assert caption.attention is not None
    assert caption.attention.words == tuple(caption.text.split())


@pytest.mark.parametrize("family", ["instructblip", "blip2"])
@torch.no_grad()
def test_words_look_through_learned_queries(folder: Path, family: str) -> None:
    """Keeps away: maps of queries as if they had places; those of the other image or word."""
    one = vlm_factory.captioner(folder, family)
    sentence = one.prompt_tokenizer.caption("the sphere")[:-1]
    rows = torch.zeros(len(sentence), 10)
    places = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    rows[0, 1], rows[0, 6], rows[-1, 4] = 0.5, 0.25, 0.1
    crossing = torch.zeros(2, 4, 16)
    crossing[0, 1, 3] = crossing[1, 2, 9] = crossing[1, 0, 0] = 1
    maps = one._of_words(rows, places, crossing, sentence).maps
    assert maps[0].ravel()[[3, 9]] == pytest.approx([2 / 3, 1 / 3])
    assert maps[1].ravel()[0] == pytest.approx(1)
    (caption,) = one.caption(vlm_factory.pairs(1))
    assert caption.attention is not None
    assert caption.attention.maps.shape == (len(caption.text.split()), 4, 4)


def test_an_unknown_family_is_refused_with_its_attention_modules(folder: Path) -> None:
    """Keeps away: a model of another architecture that is adapted in no layer at all."""
    path = vlm_factory.save(folder, "smolvlm")
    config = loading.read_config(path)
    with pytest.raises(UserError, match=r"no family is named foo.*vision_model.*self_attn"):
        loading.family_of(config, "foo", path)
    config.model_type = "unheard-of"
    with pytest.raises(UserError, match=r"unheard-of belongs to no family.*text_model"):
        loading.family_of(config, None, path)


def test_share_inside_is_of_what_the_mask_covers() -> None:
    """Keeps away: a figure in the log that rises while attention leaves the mask."""
    mask = torch.tensor([[1.0, 0.6, 0.2, 0.0]])
    attention = torch.tensor([[0.1, 0.2, 0.3, 0.2]])
    assert attention_loss.share_inside(attention, mask).item() == pytest.approx(0.3 / 0.8)


def test_an_old_transformers_and_smolvlm_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a traceback out of transformers on Python 3.10, in the middle of a training."""
    config = transformers.AutoConfig.for_model(
        "smolvlm", vision_config={"image_size": 56, "patch_size": 14}, scale_factor=2
    )
    monkeypatch.setattr(folders, "version", lambda name: "5.21.0")
    assert images.geometry(families.FAMILIES["smolvlm"], config, None).places == 4
    monkeypatch.setattr(folders, "version", lambda name: "5.20.2")
    with pytest.raises(UserError, match="groups of 14 tokens"):
        images.geometry(families.FAMILIES["smolvlm"], config, None)
