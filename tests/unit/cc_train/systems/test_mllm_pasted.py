"""Both images pasted into one picture, side by side: for models that take one image alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media.images import encode_image
from cc_train.systems.mllm import attention_loss, families, images
from cc_train.systems.mllm.batches import AttentionControl, Entities, MllmBatches
from cc_train.systems.mllm.objective import MllmObjective
from cc_train.systems.mllm.recipe import control_grid
from tests import vlm_factory

ALL = ("instructblip", "internvl", "smolvlm", "qwen3_vl", "auto")
SIZE, HALF = vlm_factory.SIZE, vlm_factory.SIZE // 2
CAPTIONS, ENTITIES = ["the red cube moved to the left", "there is no change"], [["red cube"], []]


def captioner(folder: Path, family: str, **model: Any) -> Any:
    model["images"] = "pasted"
    if family == "auto":
        model["family"], family, folder = "auto", "qwen2_5_vl", folder / "auto"
        vlm_factory.add_processor(vlm_factory.save(folder, family))
    return vlm_factory.captioner(folder, family, model=model)


@pytest.mark.parametrize("family", ALL)
@torch.no_grad()
def test_a_model_sees_one_picture_with_before_on_the_left(folder: Path, family: str) -> None:
    """Keeps away: two pictures for the places of one; after before before; halves of two pairs."""
    one = captioner(folder, family)
    plain = vlm_factory.captioner(folder, "qwen2_5_vl" if family == "auto" else family)
    assert one.inputs.size == (SIZE, HALF)
    batch = vlm_factory.batch(one, CAPTIONS, ENTITIES)
    images_of = batch["before_after"]
    assert images_of.shape == (2, 2, SIZE, HALF, 3)
    places = (batch["ids"] == one.prompt_tokenizer.image).sum(1).tolist()
    assert places == [plain.shape.places] * 2
    by_hand = torch.cat((images_of[:, 0], images_of[:, 1]), dim=2)
    twice = torch.stack((by_hand, by_hand), dim=1)  # in the place of two images: the same one
    expected, seen = plain.image_inputs(twice), one.image_inputs(images_of)
    for name, values in seen.items():
        known = expected[name]
        if values.ndim == known.ndim and len(values) != len(known):
            parts = known.chunk(4)
            known = torch.cat((parts[0], parts[2]))
        else:  # SmolVLM's: pairs, pictures
            known = known[:, :1]
        torch.testing.assert_close(values, known, atol=1e-5, rtol=0)
    length = batch["ids"].shape[1]
    logits = one(batch, length).logits
    swapped = one({**batch, "before_after": images_of.flip(1)}, length).logits
    assert (swapped - logits)[:, -1].abs().max() > 1e-5
    other = images_of.clone()
    other[1] = vlm_factory.pairs(1, 7, SIZE, HALF)[0]
    changed = one({**batch, "before_after": other}, length).logits
    assert torch.equal(changed[0], logits[0])
    captions = [*one.caption(images_of, 1, ENTITIES), *one.caption(images_of, 2, ENTITIES)]
    assert all(caption.score is not None for caption in captions)


def marked() -> TrainingSample:
    """A pair of noise whose left half was found to have changed."""
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (SIZE, SIZE, 3)).astype(np.uint8) for _ in range(2)]
    stored = {frame: encode_image(image, "png", 0) for frame, image in enumerate(noise)}
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[:, :HALF] = 255
    meta = {"height": SIZE, "width": SIZE, "captions": CAPTIONS, "kind": "change"}
    empty = np.zeros((2, 0, 0), np.int16), np.zeros((2, 0, 2), np.float32)
    return TrainingSample("pair", meta, *empty, stored, change_png=encode_image(mask, "png", 0))


@pytest.mark.parametrize(
    ("family", "where"), [("instructblip", "vision"), ("smolvlm", "vision"), ("qwen3_vl", "llm")]
)
def test_the_mask_lies_over_both_halves(folder: Path, family: str, where: Any) -> None:
    """Keeps away: a mask that is stretched over the picture, and draws attention to the seam."""
    model = {"image_size": 2 * SIZE} if family == "qwen3_vl" else {}
    one = captioner(folder, family, **model)
    control = AttentionControl(where=where)
    assert control_grid(one, control) == (4, 4)
    make = MllmBatches(
        one.prompt_tokenizer,
        one.inputs.size,
        control,
        Entities(),
        (4, 4),
        one.shape.images,
        None,
        True,
    )
    batch = make([marked()], [np.random.default_rng(0)])
    assert batch["before_after"].shape == (1, 2, *one.inputs.size, 3)
    columns = np.tile([1.0, 0.0, 1.0, 0.0], (4, 1))
    expected = torch.from_numpy(attention_loss.blurred(columns))
    torch.testing.assert_close(batch["mask"].view(4, 4), expected)
    objective = MllmObjective(one, lambda captioner: {}, control, 0.0, 1.0, "cpu")
    losses = objective.losses("model", batch, 0, objective.denominators(batch))
    losses["total"].backward()
    assert losses["attention"] > 0


def test_maps_of_words_lie_over_each_image(folder: Path) -> None:
    """Keeps away: heat of the image before that is drawn on the left of the image after."""
    maps = torch.zeros(2, 2, 4)
    maps[0, 0, 1], maps[1, 1, 2] = 1, 1
    both = images.maps_of_sides(maps)
    assert both.tolist() == [[[0, 1], [0, 0]], [[0, 0], [1, 0]]]
    odd = torch.zeros(1, 1, 3)
    odd[0, 0, 1] = 1  # lies over the end of before and the beginning of after
    assert images.maps_of_sides(odd).tolist() == [[[0.5, 0, 0.5]]]
    (caption,) = captioner(folder, "instructblip").caption(vlm_factory.pairs(1, 0, SIZE, HALF))
    assert caption.attention is not None
    assert caption.attention.maps.shape[1:] == (4, 2)
    assert caption.attention.maps.sum((1, 2)) == pytest.approx(1)


def test_what_cannot_be_pasted_is_refused(folder: Path) -> None:
    """Keeps away: halves of different widths; features of one image that are taken for a pair's."""
    with pytest.raises(UserError, match="family lm sees features of each image"):
        images.require_pictures(families.LM, None, "pasted")
    with pytest.raises(UserError, match=r"model\.image_size=224: family lm sees the features"):
        images.require_pictures(families.LM, 224, "two")
    words = vlm_factory.tokenizer(vlm_factory.MARKS["internvl"])
    shape = images.geometry(families.INTERNVL, vlm_factory.config("internvl", words, None), None)
    odd = dataclasses.replace(shape, size=21)
    with pytest.raises(UserError, match="a picture of 21 px has no two halves"):
        images._laid_out(odd, "pasted")
