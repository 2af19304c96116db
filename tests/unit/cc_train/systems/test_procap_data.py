"""Masks, damaged orders, batches, words: what chance decides, and what it may not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.records import NO_CHANGE
from cc_train.systems.procap import batches, damage, masking
from cc_train.systems.procap.masking import Masks
from cc_train.text import BOS, EOS, IGNORED, MARKS, UNK, Vocabulary, words_of

SHAPE = (4, 14, 14)
seeds = st.integers(0, 10_000).map(np.random.default_rng)


@given(rng=seeds, rows=st.integers(1, 16), columns=st.integers(1, 16))
def test_a_box_is_never_all_nor_nothing(rng: np.random.Generator, rows: int, columns: int) -> None:
    box = masking.box((rows, columns), Masks(), rng)
    assert box.any()
    assert not box.all() or rows == 1 or columns == 1
    at_rows, at_columns = np.nonzero(box)
    whole = box[at_rows.min() : at_rows.max() + 1, at_columns.min() : at_columns.max() + 1]
    assert whole.all(), "a rectangle"


def test_each_mask_masks_what_it_says() -> None:
    rng, masks = np.random.default_rng(0), Masks()
    assert not masking.make("full", SHAPE, masks, rng).any()
    interior = masking.make("interior", SHAPE, masks, rng)
    assert interior[[0, -1]].all()
    assert not interior[1:-1].any()
    for name in ("box_masked", "box_visible"):
        mask = masking.make(name, SHAPE, masks, rng)
        assert (mask == mask[0]).all(), "the same box in all frames"
        edge = np.concatenate((mask[0, 0], mask[0, -1], mask[0, :, 0], mask[0, :, -1]))
        assert (edge.mean() > 0.5) == (name == "box_masked")


def test_masks_come_as_often_as_they_should() -> None:
    rng = np.random.default_rng(1)
    drawn = [masking.draw(SHAPE, Masks(), rng) for _ in range(2000)]
    shares = [np.mean([name == one for name, _ in drawn]) for one in masking.NAMES]
    assert np.allclose(shares, (0.7, 0.1, 0.1, 0.1, 0), atol=0.03)
    visible = np.mean([keep.mean() for name, keep in drawn if name == "random"])
    assert visible == pytest.approx(0.2, abs=0.01)
    # The reference's boxes have a mean area of 0.445.
    areas = [1 - keep.mean() for name, keep in drawn if name == "box_masked"]
    assert np.mean(areas) == pytest.approx(0.445, abs=0.04)


def test_masks_that_do_not_sum_to_one() -> None:
    with pytest.raises(ValueError, match="sum to 1"):
        Masks(random=0.5)


@given(rng=seeds, count=st.integers(2, 6))
def test_a_shuffle_is_never_the_true_order(rng: np.random.Generator, count: int) -> None:
    order = damage.shuffle(np.arange(count), rng)
    assert sorted(order) == list(range(count))
    assert list(order) != list(range(count))


def test_damage_of_tokens_is_swap_or_shuffle() -> None:
    own, other = np.arange(12).reshape(4, 3), 100 + np.arange(12).reshape(4, 3)
    original = own.copy()
    swaps = 0
    for seed in range(200):
        damaged = damage.damage(own, other, np.random.default_rng(seed))
        foreign = (damaged >= 100).all(axis=1).sum()
        swaps += int(foreign)
        assert foreign == 1 or sorted(map(tuple, damaged)) == sorted(map(tuple, own))
    assert (own == original).all(), "the true sequence stays as it was"
    assert 70 < swaps < 130


def test_damage_of_images_touches_one_frame() -> None:
    own = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)
    for seed in range(40):
        damaged = damage.damage(own, own, np.random.default_rng(seed))
        assert damaged.dtype == np.uint8
        changed = [not (a == b).all() for a, b in zip(own, damaged, strict=True)]
        assert sum(changed) <= 1 or sorted(map(bytes, own)) == sorted(map(bytes, damaged))


def test_no_turn_and_no_shift_leave_the_image() -> None:
    image = torch.rand(1, 3, 9, 9)
    assert torch.allclose(damage.warp_by(image, damage.affine(0, 0, 0, 1)), image, atol=1e-5)


def sample(captions: list[str], kind: str = "change", number: int = 0) -> TrainingSample:
    tokens = np.arange(9 * 4, dtype=np.int16).reshape(9, 2, 2) + 100 * number
    scores = np.zeros((2, max(1, len(captions)), 9), np.float32)
    scores[0] = np.linspace(9, -9, 9)
    return TrainingSample("key", {"captions": captions, "kind": kind}, tokens, scores, {})


def test_keyframes_are_drawn_anew() -> None:
    make = batches.ProcedureBatches("tokens", batches.Keyframes(k=2), Masks(), 6)
    first = [sample(["a cube"]), sample(["a ball"], number=1)]
    drawn = set()
    for seed in range(20):
        rngs = [np.random.default_rng([seed, i]) for i in range(2)]
        batch = make(first, rngs)
        frames = batch["tokens"].view(2, 4, 4)
        numbers = (frames[0, :, 0] // 4).tolist()
        assert numbers[0] == 0
        assert numbers[-1] == 8
        assert numbers == sorted(numbers)
        drawn.add(tuple(numbers))
        assert (batch["frames"].flatten(1) == batch["tokens"]).all()
    assert len(drawn) > 5


def test_partners_captions_that_are_as_true_do_not_count() -> None:
    partner = batches.negative_indices(5)
    assert partner.tolist() == [1, 0, 3, 2, 0]
    metas = [{"kind": k} for k in ("change", "change", NO_CHANGE, NO_CHANGE, "change")]
    texts = ["a", "b", "the same", "no change", "c"]
    assert batches.negative_is_valid(texts, metas, partner) == [True, True, False, False, True]
    assert batches.negative_is_valid(["a", "a"], metas[:2], batches.negative_indices(2)) == [
        False,
        False,
    ]


def test_more_keyframes_than_frames() -> None:
    make = batches.ProcedureBatches("tokens", batches.Keyframes(k=8), Masks(), 6)
    with pytest.raises(UserError, match=r"keyframes\.k is 8, key has 7 frames"):
        make([sample(["a"])], [np.random.default_rng(0)])


def test_pixels_that_are_not_stored() -> None:
    make = batches.ProcedureBatches("pixels", batches.Keyframes(k=2), Masks(), 6)
    with pytest.raises(UserError, match=r"keyframes\.images=all"):
        make([sample(["a"])], [np.random.default_rng(0)])


def stored(*frames: int) -> TrainingSample:
    """A sample that holds the images of some frames, frame i of brightness 20·i."""
    images = {
        i: cv2.imencode(".jpg", np.full((16, 16, 3), 20 * i, np.uint8))[1].tobytes() for i in frames
    }
    return dataclasses.replace(sample(["a"]), images=images)


FIXED = (0, 3, 4, 8)  # the smallest penalties of `sample`, and the ends


@pytest.mark.parametrize("strategy", ["confidence", "random", "visual"])
def test_a_rule_that_draws_needs_all_images(strategy: str) -> None:
    """Keeps away: the same keyframes in every epoch, where the settings say that they are drawn."""
    rule = batches.Keyframes(k=2, strategy=strategy)
    make = batches.ProcedureBatches("pixels", rule, Masks(), 6)
    with pytest.raises(UserError, match=rf"strategy {strategy} draws.*keyframes\.images=all"):
        make([stored(*FIXED)], [np.random.default_rng(0)])
    drawn = set()
    for seed in range(20):
        batch = make([stored(*range(9))], [np.random.default_rng(seed)])
        levels = batch["frames"][0].float().mean((1, 2, 3)) / 20
        drawn.add(tuple(levels.round().int().tolist()))
    assert len(drawn) > 5
    assert all(frames[0] == 0 and frames[-1] == 8 for frames in drawn)


@pytest.mark.parametrize(("rule", "frames"), [({"strategy": "top"}, FIXED), ({"k": 0}, (0, 8))])
def test_a_rule_that_does_not_draw_needs_its_own_images(
    rule: dict[str, Any], frames: tuple[int, ...]
) -> None:
    make = batches.ProcedureBatches("pixels", batches.Keyframes(**rule), Masks(), 6)
    batch = make([stored(*FIXED)], [np.random.default_rng(0)])
    levels = batch["frames"][0].float().mean((1, 2, 3)) / 20
    assert tuple(levels.round().int().tolist()) == frames
    with pytest.raises(UserError, match=r"no image of frame .*keyframes\.images=all"):
        make([stored(*frames[1:])], [np.random.default_rng(0)])


def test_text_is_cut_and_padded_without_marks() -> None:
    ids = batches.text_ids("the small red cylinder has been moved", 5)
    assert ids.tolist() == [518, 2442, 736, 22092, 791]
    assert batches.text_ids("the", 3).tolist() == [518, 0, 0]


def test_vocabulary_of_captions() -> None:
    vocabulary = Vocabulary.of(["A cube moved.", "a ball moved", "the cube"], min_count=2)
    assert vocabulary.words == [*MARKS, "a", "cube", "moved"]
    ids, labels = vocabulary.encode("a ball moved", 6)
    assert ids.tolist() == [BOS, vocabulary.ids["a"], UNK, vocabulary.ids["moved"], EOS, 0]
    assert labels.tolist() == [*ids.tolist()[1:5], IGNORED, IGNORED]
    a, cube, moved = (vocabulary.ids[word] for word in ("a", "cube", "moved"))
    assert vocabulary.decode([a, cube, EOS, moved]) == "a cube"


@given(st.text(max_size=60))
def test_no_text_breaks_the_words(text: str) -> None:
    vocabulary = Vocabulary.of(["a cube"])
    ids, labels = vocabulary.encode(text, 7)
    assert len(ids) == len(labels) == 7
    assert ids[0] == BOS
    assert EOS in ids


def test_sentences_and_abbreviations() -> None:
    assert words_of("It's gone. Mr. X left!") == ["it", "'s", "gone", ".", "mr.", "x", "left", "!"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"[PAD]": 0, "[CLS]": 5}', "ids are not 0 to 1"),
        ('["a", "b"]', "does not begin with"),
        ("no", "Expecting value"),
        (json.dumps([*MARKS, "a", "a"]), "twice"),
    ],
)
def test_foreign_vocabularies(tmp_path: Path, content: str, message: str) -> None:
    place = tmp_path / "words.json"
    place.write_text(content)
    with pytest.raises(UserError, match=message):
        Vocabulary.read(place)


def test_word2idx_files_are_read(tmp_path: Path) -> None:
    place = tmp_path / "word2idx.json"
    ids = {word: number for number, word in enumerate([*MARKS, "cube", "a"])}
    place.write_text(json.dumps(dict(reversed(ids.items()))))
    assert Vocabulary.read(place).words == [*MARKS, "cube", "a"]
