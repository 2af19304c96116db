"""Batches of stage 1: which frames, whose captions, which part of the images."""

from __future__ import annotations

import dataclasses
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features, TrainingSample
from cc_prep.media.images import encode_image
from cc_prep.records import NO_CHANGE
from cc_train.data.collate import FeatureSource
from cc_train.systems.procap import batches
from cc_train.systems.procap.batches import Keyframes, ProcedureBatches
from cc_train.systems.procap.masking import Masks

FRAMES, SIDE = 5, 16


def picture(frame: int, number: int) -> np.ndarray:
    return np.full((SIDE, SIDE, 3), 40 * frame + 10 * number, np.uint8)


def sample(number: int = 0, stored: tuple[int, ...] = tuple(range(FRAMES))) -> TrainingSample:
    """Tokens and images that tell frame and sample."""
    tokens = (100 * number + 10 * np.arange(FRAMES)[:, None, None]) * np.ones((1, 2, 2))
    scores = np.zeros((2, 1, FRAMES), np.float32)
    scores[0] = [9, 3, 1, 2, 9]  # penalties are their squares: frames 2 and 3 are the middle
    images = {i: encode_image(picture(i, number), "png", 90) for i in stored}
    meta = {"captions": [f"caption {number}"], "kind": "change"}
    return TrainingSample(f"k{number}", meta, tokens.astype(np.int16), scores, images)


def assembler(kind: str = "tokens", k: int = 2, **more: object) -> ProcedureBatches:
    return ProcedureBatches(kind, Keyframes(strategy="top", k=k), Masks(), 4, **more)  # type: ignore[arg-type]


def rngs(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng([3, i]) for i in range(count)]


def damaged_of(batch: dict[str, Any]) -> torch.Tensor:
    frames = torch.cat((batch["frames"], batch["altered"]), dim=1)
    return torch.stack(
        [one[order] for one, order in zip(frames, batch["damaged_order"], strict=True)]
    )


def test_without_captions_the_text_is_empty_and_judges_nothing() -> None:
    """Keeps away: another draw of frames and masks, and a wrong caption where none is shown."""
    shown = assembler()([sample(i) for i in range(2)], rngs(2))
    silent = assembler(text="none", first_caption=True)([sample(i) for i in range(2)], rngs(2))
    assert not silent["text"].any()
    assert not silent["negative_is_valid"].any()
    assert torch.equal(silent["frames"], shown["frames"])


def test_pasted_things_change_no_other_draw() -> None:
    """Keeps away: other masks and frames where things are pasted, and pairs of another sample."""
    ones = [sample(i) for i in range(2)]
    for one in ones:
        one.meta.update(height=SIDE, width=SIDE)
    plain, pasted = assembler()(ones, rngs(2)), assembler(pasted=True)(ones, rngs(2))
    for name, values in plain.items():
        assert torch.equal(pasted[name], values), name
    assert pasted["pasted"].shape == (2, 2, SIDE, SIDE, 3)
    assert pasted["pasted_kinds"].shape == (2, 4)
    ends = [{10 * i, 160 + 10 * i} for i in range(2)]
    for i in range(2):
        values, counts = pasted["pasted"][i].unique(return_counts=True)
        near = {int(end * light) for end in ends[i] for light in (0.9, 1.1)}
        assert min(near) <= int(values[counts.argmax()]) <= max(near) + 1


def test_things_need_images_to_be_pasted_into() -> None:
    bare = sample(stored=())
    bare.meta.update(height=SIDE, width=SIDE)
    with pytest.raises(UserError, match="k0 holds none of its ends"):
        assembler(pasted=True)([bare, bare], rngs(2))


def test_a_batch_says_which_pairs_changed() -> None:
    """Keeps away: a validation's figures of changed pairs under the name of the unchanged ones."""
    samples = [sample(i) for i in range(3)]
    samples[1].meta["kind"] = "no_change"
    assert assembler()(samples, rngs(3))["changed"].tolist() == [True, False, True]


def test_every_part_is_of_its_own_sample() -> None:
    """Keeps away: tokens, frames or masks that belong to the neighbour."""
    batch = assembler()([sample(i) for i in range(3)], rngs(3))
    numbers = torch.arange(3)[:, None] * 100
    frames = torch.tensor([0, 20, 30, 40]).repeat_interleave(4)
    assert torch.equal(batch["tokens"], numbers + frames)
    assert batch["frames"].shape == (3, 4, 4)
    assert torch.equal(batch["frames"].flatten(1), batch["tokens"])
    assert batch["visible"].shape == batch["tokens"].shape
    assert batch["negative_index"].tolist() == [1, 0, 0]
    assert batch["negative_is_valid"].tolist() == [True, True, True]
    assert batch["text"].shape == (3, 4)
    for i, partner in enumerate((1, 0, 0)):
        foreign = damaged_of(batch)[i].flatten() // 100
        assert set(foreign.tolist()) <= {i, partner}, "replaced by a frame of the partner alone"


def test_pixels_are_those_of_the_keyframes() -> None:
    batch = assembler("pixels")([sample(0), sample(1)], rngs(2))
    assert batch["frames"].shape == (2, 4, SIDE, SIDE, 3)
    for number in range(2):
        for at, frame in enumerate((0, 2, 3, 4)):
            assert (batch["frames"][number, at].numpy() == picture(frame, number)).all()


def test_a_rule_that_draws_wants_every_image() -> None:
    """Keeps away: keyframes that are always those which happen to be stored."""
    for k in (1, 2):
        drawing = ProcedureBatches("pixels", Keyframes(k=k), Masks(), 4)
        assert drawing([sample(0)], rngs(1))["frames"].shape[1] == k + 2
        with pytest.raises(UserError, match="draws among 5 frames, and k0 holds the images of 4"):
            drawing([sample(0, (0, 1, 3, 4))], rngs(1))
    nothing = ProcedureBatches("pixels", Keyframes(k=0), Masks(), 4)
    assert nothing([sample(0, (0, 4))], rngs(1))["frames"].shape[1] == 2, "there is nothing to draw"
    fixed = assembler("pixels")([sample(0, (0, 2, 3, 4))], rngs(1))
    assert (fixed["tokens"][0].view(4, 4)[:, 0] // 10).tolist() == [0, 2, 3, 4]


@pytest.mark.parametrize(("k", "fits"), [(0, True), (3, True), (4, False)])
def test_how_many_frames_lie_in_between(k: int, fits: bool) -> None:
    if fits:
        assert assembler(k=k)([sample()], rngs(1))["tokens"].shape == (1, (k + 2) * 4)
    else:
        with pytest.raises(UserError, match=r"keyframes\.k is 4, k0 has 3 frames in between"):
            assembler(k=k)([sample()], rngs(1))


def test_cropped_frames_have_no_stored_tokens() -> None:
    """Keeps away: targets of the whole frame for a part of it."""
    assert "tokens" not in assembler("pixels", crop=0.5)([sample()], rngs(1))
    assert "tokens" in assembler("pixels")([sample()], rngs(1))


def test_a_crop_has_the_area_and_the_place_that_it_should() -> None:
    """Keeps away: crops that are all of one size, or that never reach an edge."""
    height, width = 40, 60
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    image = np.stack([6 * rows, 4 * columns, 0 * rows], -1).astype(np.uint8)[None]
    areas, tops, lefts, bottoms, rights = [], [], [], [], []
    for seed in range(300):
        crop = batches.cropped(image, 0.25, np.random.default_rng(seed))
        assert crop.shape == image.shape
        top, bottom = crop[0, 0, 0, 0] / 6, crop[0, -1, 0, 0] / 6
        left, right = crop[0, 0, 0, 1] / 4, crop[0, 0, -1, 1] / 4
        areas.append((bottom - top + 1) * (right - left + 1) / (height * width))
        tops.append(top)
        lefts.append(left)
        bottoms.append(bottom)
        rights.append(right)
        assert (bottom - top + 1) / height == pytest.approx((right - left + 1) / width, abs=0.06)
    assert 0.22 < min(areas) < 0.3
    assert 0.9 < max(areas) < 1.02
    assert np.mean(areas) == pytest.approx(0.625, abs=0.04), "areas are uniform, and not sides"
    assert min(tops) < 1
    assert min(lefts) < 1
    assert max(bottoms) > height - 2
    assert max(rights) > width - 2


def test_a_crop_of_a_tiny_image_keeps_a_pixel() -> None:
    image = np.arange(3, dtype=np.uint8).reshape(1, 1, 1, 3)
    assert (batches.cropped(image, 0.01, np.random.default_rng(0)) == image).all()


def test_neighbours_are_partners() -> None:
    assert [batches.negative_indices(n).tolist() for n in (1, 2, 3, 4)] == [
        [0], [1, 0], [1, 0, 0], [1, 0, 3, 2]
    ]  # fmt: skip


def test_partners_in_the_order_of_the_shards_are_of_other_scenes() -> None:
    """Keeps away: a validation whose wrong frames are the true ones, as both pairs of a scene have
    the same image before.
    """
    pairs = [scene for scene in "abcdefgh" for _ in range(2)]
    partner = batches.other_scenes(pairs)
    assert partner.dtype == np.int64
    assert partner.tolist() == [*range(8, 16), *range(8)]
    assert batches.other_scenes(list("aab")).tolist() == [2, 2, 0]
    assert batches.other_scenes(list("aaab")).tolist() == [3, 3, 3, 1]
    assert [batches.other_scenes(list("a" * n)).tolist() for n in (1, 2)] == [[0], [1, 0]]


def test_texts_lose_their_marks_alone() -> None:
    """Keeps away: a first or last word that is cut with the marks."""
    whole = batches.text_ids("the small cube", 8).tolist()
    assert whole[3:] == [0] * 5
    assert 0 not in whole[:3]
    assert batches.text_ids("the small cube", 3).tolist() == whole[:3]
    assert batches.text_ids("the small cube", 2).tolist() == whole[:2]


def token_sample(captions: list[str], kind: str = "change", number: int = 0) -> TrainingSample:
    tokens = np.arange(9 * 4, dtype=np.int16).reshape(9, 2, 2) + 100 * number
    scores = np.zeros((2, max(1, len(captions)), 9), np.float32)
    scores[0] = np.linspace(9, -9, 9)
    return TrainingSample("key", {"captions": captions, "kind": kind}, tokens, scores, {})


def test_keyframes_are_drawn_anew() -> None:
    make = batches.ProcedureBatches("tokens", batches.Keyframes(k=2), Masks(), 6)
    first = [token_sample(["a cube"]), token_sample(["a ball"], number=1)]
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
        make([token_sample(["a"])], [np.random.default_rng(0)])


def test_pixels_that_are_not_stored() -> None:
    make = batches.ProcedureBatches("pixels", batches.Keyframes(k=2), Masks(), 6)
    with pytest.raises(UserError, match=r"keyframes\.images=all"):
        make([token_sample(["a"])], [np.random.default_rng(0)])


def image_sample(*frames: int) -> TrainingSample:
    """A token_sample that holds the images of some frames, frame i of brightness 20·i."""
    images = {
        i: cv2.imencode(".jpg", np.full((16, 16, 3), 20 * i, np.uint8))[1].tobytes() for i in frames
    }
    return dataclasses.replace(token_sample(["a"]), images=images)


FIXED = (0, 3, 4, 8)  # the smallest penalties of `token_sample`, and the ends


@pytest.mark.parametrize("strategy", ["confidence", "random", "visual"])
def test_a_rule_that_draws_needs_all_images(strategy: str) -> None:
    """Keeps away: the same keyframes in every epoch, where the settings say that they are drawn."""
    rule = batches.Keyframes(k=2, strategy=strategy)
    make = batches.ProcedureBatches("pixels", rule, Masks(), 6)
    with pytest.raises(UserError, match=rf"strategy {strategy} draws.*keyframes\.images=all"):
        make([image_sample(*FIXED)], [np.random.default_rng(0)])
    drawn = set()
    for seed in range(20):
        batch = make([image_sample(*range(9))], [np.random.default_rng(seed)])
        levels = batch["frames"][0].float().mean((1, 2, 3)) / 20
        drawn.add(tuple(levels.round().int().tolist()))
    assert len(drawn) > 5
    assert all(frames[0] == 0 and frames[-1] == 8 for frames in drawn)


@pytest.mark.parametrize(("rule", "frames"), [({"strategy": "top"}, FIXED), ({"k": 0}, (0, 8))])
def test_a_rule_that_does_not_draw_needs_its_own_images(
    rule: dict[str, Any], frames: tuple[int, ...]
) -> None:
    make = batches.ProcedureBatches("pixels", batches.Keyframes(**rule), Masks(), 6)
    batch = make([image_sample(*FIXED)], [np.random.default_rng(0)])
    levels = batch["frames"][0].float().mean((1, 2, 3)) / 20
    assert tuple(levels.round().int().tolist()) == frames
    with pytest.raises(UserError, match=r"no image of frame .*keyframes\.images=all"):
        make([image_sample(*frames[1:])], [np.random.default_rng(0)])


@pytest.mark.parametrize(
    ("rule", "scored_by", "captions", "refused"),
    [
        ("visual", "captions", ["it moved"], True),
        ("visual", "likeness", ["it moved"], False),
        ("confidence", "captions", ["it moved"], False),
        ("confidence", "likeness", ["it moved"], True),
        ("top", "likeness", ["it moved"], True),
        ("top", "likeness", [], False),  # without captions there is nothing else
        ("uniform", "likeness", ["it moved"], False),
        ("random", "captions", ["it moved"], False),
    ],
)
def test_a_rule_takes_scores_of_its_own_kind(
    rule: Any, scored_by: str, captions: list[str], refused: bool
) -> None:
    """Keeps away: an ablation of `visual` against `confidence` that trains the same run twice."""
    one = sample()
    meta = {**one.meta, "scored_by": scored_by, "captions": captions}
    one = dataclasses.replace(one, meta=meta)
    make = ProcedureBatches("tokens", Keyframes(strategy=rule, k=1), Masks(), 4)
    if refused:
        with pytest.raises(UserError, match=f"strategy {rule} needs scores of .* has those of"):
            make([one], rngs(1))
    else:
        assert make([one], rngs(1))["tokens"].shape == (1, 3 * 4)


def test_text_is_cut_and_padded_without_marks() -> None:
    ids = batches.text_ids("the small red cylinder has been moved", 5)
    assert ids.tolist() == [518, 2442, 736, 22092, 791]
    assert batches.text_ids("the", 3).tolist() == [518, 0, 0]


@given(st.integers(0, 10**6), st.floats(0.05, 1), st.integers(8, 40), st.integers(8, 40))
def test_a_crop_is_the_same_of_all_frames(seed: int, least: float, height: int, width: int) -> None:
    ramp = np.arange(height * width, dtype=np.int64).reshape(1, height, width, 1) * 255
    frame = np.broadcast_to(ramp // (height * width), (1, height, width, 3)).astype(np.uint8)
    frames = np.concatenate([frame, frame, frame])
    crops = batches.cropped(frames, least, np.random.default_rng(seed))
    assert crops.shape == frames.shape
    assert (crops[0] == crops[1]).all()
    assert (crops[0] == crops[2]).all()
    if least == 1:  # nothing is left out, and a resize to the same size changes nothing
        assert (crops == frames).all()


PLANTED = FeatureSource("planted", "ab" * 32)


def feature_sample(number: int, stored: tuple[int, ...] = tuple(range(FRAMES))) -> TrainingSample:
    """A sample with the features of some frames, which tell frame and sample."""
    levels = 100 * number + 10 * np.array(stored)[:, None, None, None]
    values = (levels + np.arange(3 * 16).reshape(1, 3, 4, 4) / 100).astype(np.float16)
    features = Features(*PLANTED, stored, values)
    return dataclasses.replace(sample(number, ()), features=features)


def test_features_are_those_of_the_keyframes() -> None:
    """Keeps away: features by their place in the file where some frames have none; float16 as
    stored, since the network tells features from images by it."""
    stored = (0, 2, 3, 4)
    samples = [feature_sample(0, stored), feature_sample(1, stored)]
    batch = assembler("features", backbone=PLANTED)(samples, rngs(2))
    assert (batch["frames"].shape, batch["frames"].dtype) == ((2, 4, 3, 4, 4), torch.float16)
    for number in range(2):
        for at, frame in enumerate(stored):
            values = batch["frames"][number, at].float()
            assert values.mean() == pytest.approx(100 * number + 10 * frame + 0.235, abs=0.1)
            assert (batch["tokens"][number].view(4, 4)[at] == 100 * number + 10 * frame).all()
    damaged = damaged_of(batch).float().mean((2, 3, 4)).round() // 10
    assert set(damaged.flatten().tolist()) <= {0, 2, 3, 4, 10, 12, 13, 14}, "whole frames alone"
    assert not torch.equal(damaged_of(batch), batch["frames"])


@pytest.mark.parametrize("strategy", ["confidence", "random", "visual"])
def test_a_rule_that_draws_needs_all_features(strategy: str) -> None:
    rule = Keyframes(strategy=strategy, k=2)  # type: ignore[arg-type]
    make = ProcedureBatches("features", rule, Masks(), 4, backbone=PLANTED)
    drawn = set()
    alike = dataclasses.replace(feature_sample(0), scores=np.zeros((2, 1, FRAMES), np.float32))
    for seed in range(20):
        batch = make([alike], [np.random.default_rng(seed)])
        drawn.add(tuple((batch["frames"][0].float().mean((1, 2, 3)) // 10).int().tolist()))
    assert len(drawn) > 2
    for number, stored in ((4, (0, 1, 3, 4)), (2, (0, 4))):
        with pytest.raises(
            UserError, match=rf"{strategy} draws among 5 .* features of {number}.*frames=all"
        ):
            make([feature_sample(0, stored)], rngs(1))
    with pytest.raises(UserError, match=r"features of 0\. .*features\.backbone"):
        make([sample(0)], rngs(1))


def test_features_that_are_not_stored_or_not_alike_are_refused() -> None:
    make = assembler("features", backbone=PLANTED)
    with pytest.raises(UserError, match=r"k0: .*frame 2 .*features\.frames=all"):
        make([feature_sample(0, (0, 1, 3, 4))], rngs(1))
    with pytest.raises(UserError, match="k0 holds features"):
        assembler("features", backbone=FeatureSource("planted", "cd" * 32))(
            [feature_sample(0)], rngs(1)
        )
    smaller = feature_sample(1)
    assert smaller.features is not None
    features = dataclasses.replace(smaller.features, values=smaller.features.values[..., :2, :2])
    with pytest.raises(UserError, match="one image_size"):
        make([feature_sample(0), dataclasses.replace(smaller, features=features)], rngs(2))
