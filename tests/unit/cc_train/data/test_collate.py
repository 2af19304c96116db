"""What captioners read of a sample."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features, TrainingSample
from cc_train.data import image_pairs
from cc_train.data.collate import (
    CaptionBatches,
    FeatureSource,
    Reads,
    before_after,
    draw_caption,
    features_of,
    images_of,
)
from cc_train.text import MARKS, Vocabulary

FRAMES, SIDE = 3, 4
WORDS = Vocabulary([*MARKS, "a", "cube", "moved"])


def png(value: int, shape: tuple[int, ...] = (SIDE, SIDE, 3)) -> bytes:
    return bytes(cv2.imencode(".png", np.full(shape, value, np.uint8))[1])


def sample(**changes: object) -> TrainingSample:
    values = np.arange(2 * 5 * 2 * 2, dtype=np.float16).reshape(2, 5, 2, 2)
    parts = {
        "key": "k",
        "meta": {
            "captions": ["a cube moved"],
            "height": SIDE,
            "width": SIDE,
            "mask_classes": ["road", "building"],
        },
        "tokens": np.arange(FRAMES * 4, dtype=np.int16).reshape(FRAMES, 2, 2),
        "scores": np.zeros((2, 1, FRAMES), np.float32),
        "images": {0: png(10), 2: png(20)},
        "features": Features("net", "0" * 64, (0, 2), values),
        "mask_png": png(2, (SIDE, SIDE)),
    }
    return TrainingSample(**{**parts, **changes})  # type: ignore[arg-type]


def test_ends_are_the_first_and_the_last_frame() -> None:
    """Keeps away: a middle frame as the image after the change."""
    assert before_after(sample(), "tokens").tolist() == [[0, 1, 2, 3], [8, 9, 10, 11]]
    images = before_after(sample(), "pixels")
    assert images.shape == (2, SIDE, SIDE, 3)
    assert images[0].max() == 10
    assert images[1].min() == 20


def test_features_are_those_of_the_ends() -> None:
    """Keeps away: rows taken by place where keyframes have features too."""
    values = np.arange(3, dtype=np.float16)[:, None, None, None] * np.ones((3, 5, 2, 2), np.float16)
    three = sample(features=Features("net", "0" * 64, (0, 1, 2), values))
    assert before_after(three, "features")[:, 0, 0, 0].tolist() == [0, 2]
    assert before_after(sample(), "features").dtype == np.float16


def test_features_of_frames_come_in_the_order_asked_for() -> None:
    assert features_of(sample(), [2, 0])[:, 0, 0, 0].tolist() == [20, 0]
    with pytest.raises(UserError, match=r"k: no features of frame 1 stored.*features\.frames=all"):
        features_of(sample(), [0, 1])
    with pytest.raises(UserError, match="k: no features of frame 0 stored"):
        features_of(sample(features=None), [0])


@pytest.mark.parametrize("other", [FeatureSource("net", "1" * 64), FeatureSource("x2", "0" * 64)])
def test_batches_refuse_features_of_another_backbone(other: FeatureSource) -> None:
    """Keeps away: two backbones that look through one network taken for each other."""
    rngs = [np.random.default_rng(0)]
    for backbone in (FeatureSource("net", "0" * 64), None):
        batch = CaptionBatches("features", WORDS, 6, backbone=backbone)([sample()], rngs)
        assert batch["before_after"].shape == (1, 2, 5, 2, 2)
    with pytest.raises(UserError, match=r"k holds features of .*, not of"):
        CaptionBatches("features", WORDS, 6, backbone=other)([sample()], rngs)
    CaptionBatches("tokens", WORDS, 6, backbone=other)([sample()], rngs)


@pytest.mark.parametrize(
    ("reads", "changes", "expected"),
    [
        ("pixels", {"images": {0: png(1)}}, "no image of frame 2"),
        ("features", {"features": None}, "no features of before and after"),
        (
            "features",
            {"features": Features("n", "0" * 64, (0,), np.zeros((1, 5, 2, 2), np.float16))},
            "no features of before and after",
        ),
    ],
)
def test_what_a_sample_lacks_is_named(
    reads: Reads, changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        before_after(sample(**changes), reads)


def test_masks_come_with_whether_there_is_one() -> None:
    """Keeps away: a sample without a mask that counts as one where nothing changed."""
    batches = CaptionBatches("tokens", WORDS, 6, mask=True)
    rngs = [np.random.default_rng(0)] * 2
    batch = batches([sample(), sample(mask_png=None)], rngs)
    assert batch["has_mask"].tolist() == [True, False]
    assert batch["mask"].float().mean((1, 2)).tolist() == [2, 0]
    assert "mask" not in CaptionBatches("tokens", WORDS, 6)([sample()], rngs[:1])


def test_ids_and_labels_are_those_of_the_codec() -> None:
    batch = CaptionBatches("tokens", WORDS, 6)([sample()], [np.random.default_rng(0)])
    ids, labels = WORDS.encode("a cube moved", 6)
    assert batch["ids"][0].tolist() == ids.tolist()
    assert batch["labels"][0].tolist() == labels.tolist()


def test_captions_are_drawn() -> None:
    several = sample(meta={"captions": ["one", "two", "three"]})
    drawn = {draw_caption(several, np.random.default_rng(seed)) for seed in range(20)}
    assert drawn == {"one", "two", "three"}
    firsts = {draw_caption(several, np.random.default_rng(s), first=True) for s in range(20)}
    assert firsts == {"one"}
    assert draw_caption(sample(meta={}), np.random.default_rng(0)) == ""


def test_samples_of_two_sizes_make_no_batch() -> None:
    """Keeps away: a traceback of numpy's in a loader worker."""
    other = sample(key="other", images={0: png(1, (8, 8, 3)), 2: png(1, (8, 8, 3))})
    batches = CaptionBatches("pixels", WORDS, 5)
    with pytest.raises(UserError, match=r"other has the shape \(2, 8, 8, 3\), k has \(2, 4, 4, 3"):
        batches([sample(), other], [np.random.default_rng(i) for i in range(2)])


def test_images_of_shards_are_resized_as_those_of_files() -> None:
    """Keeps away: images enlarged by doubling pixels in training, and smoothly by `caption`."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    stored = {0: bytes(cv2.imencode(".png", pixels[..., ::-1])[1])}
    for size in ((32, 32), (8, 8), (16, 32), (8, 12), (16, 16)):
        [ours] = images_of(sample(images=stored), [0], size)
        files = image_pairs.stack([(pixels, pixels)], size)
        assert np.array_equal(ours, files[0, 0]), size
    [enlarged] = images_of(sample(images=stored), [0], (32, 32))
    assert not np.array_equal(enlarged, pixels.repeat(2, 0).repeat(2, 1))
