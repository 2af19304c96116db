"""A strip of the report shows where something changed, if it is known."""

from __future__ import annotations

import base64
from dataclasses import replace

import cv2
import numpy as np
import pytest

from cc_prep.formats import sequences, training_shards
from cc_prep.inspect.report import strips
from cc_prep.inspect.report.strips import Frame, Strip
from cc_prep.media.masks import Masks
from cc_prep.records import FrameSequence
from tests.job_factory import pair

FRAMES = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
EMPTY = np.zeros((32, 32), np.uint8)
ROADS = np.repeat(np.array([[0, 1, 2, 0]], np.uint8), 8, axis=1).repeat(32, axis=0)


def of_both(sequence: FrameSequence) -> list[Strip]:
    """The strips of a stored sequence, and of the training sample made of it."""
    sample = training_shards.encode(
        sequence, np.zeros((3, 0, 0)), np.zeros((2, 0, 3)), [0], quality=95, processing_meta={}
    )
    return [
        strips.of_sequence(sequences.decode("k", sequences.encode(sequence, "png", 95, {}))),
        strips.of_training_sample(training_shards.decode("k", sample)),
    ]


def pixels(frame: Frame) -> np.ndarray:
    data = base64.b64decode(frame.image.partition(",")[2])
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1].astype(int)


def masks_of(strip: Strip) -> dict[str, np.ndarray]:
    return {one.label: pixels(one) for one in strip.extras if one.label != "difference"}


def test_binary_masks_are_white_and_empty_sides_are_left_out() -> None:
    """Keeps away: class 1 of 255 levels of grey, which nobody sees."""
    half = (ROADS > 0).astype(np.uint8)
    for strip in of_both(FrameSequence(pair(0), FRAMES, {}, half, EMPTY, half)):
        shown = masks_of(strip)
        assert list(shown) == ["change mask", "appeared"]
        assert shown["change mask"][16, 4].max() < 30
        assert shown["appeared"][16, 16].min() > 225


def test_classes_have_colours_of_their_own() -> None:
    """Keeps away: a road and a building that look alike."""
    record = replace(pair(0), mask_classes=("road", "building"))
    for strip in of_both(FrameSequence(record, FRAMES, {}, ROADS)):
        [mask] = masks_of(strip).values()
        assert np.abs(mask[16, 12] - mask[16, 20]).max() > 80
        assert mask[16, 28].max() < 40


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_mask_is_shown_and_none_is_not(known: bool) -> None:
    """Keeps away: "nothing changed" that looks like "not known"."""
    masks = (EMPTY, EMPTY, EMPTY) if known else ()
    for strip in of_both(FrameSequence(pair(0), FRAMES, {}, *masks)):
        assert list(masks_of(strip)) == (["change mask"] if known else [])


def test_points_of_the_curve_stand_below_the_middle_of_their_frames() -> None:
    """Keeps away: a curve beside its frames: each is STRIP_PX wide, with GAP_PX between two."""
    [strip, _] = of_both(FrameSequence(pair(0), FRAMES, {}))
    curve = strips.with_scores(strip, {"penalty": [0.0, 0.5, 0.0], "keyframes": [1]}).curve
    assert curve is not None
    assert curve.width == 3 * 128 + 2 * 4
    assert [x for x, _, _, _ in curve.points] == [curve.width / 2]


def test_eight_classes_have_colours_of_their_own() -> None:
    """Keeps away: a playground that looks like low vegetation, the sixth class like the first."""
    stripes = np.arange(9, dtype=np.uint8).repeat(16)[None].repeat(32, 0)
    [shown] = strips._masks(Masks(stripes), 8)
    middles = pixels(shown)[16, 8::16]
    distances = np.abs(middles[:, None] - middles).max(2) + 255 * np.eye(9, dtype=int)
    assert distances.min() > 40
