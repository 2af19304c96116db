"""One pair as the report shows it: its frames, their penalties, what the tokens make of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np

from cc_prep.formats import scores as score_rows
from cc_prep.formats import sequences
from cc_prep.formats.changes import FoundChange
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.inspect import stats
from cc_prep.inspect.pages import data_url
from cc_prep.media.images import encode_image, resize
from cc_prep.media.masks import Masks
from cc_prep.steps.score import penalties

STRIP_PX = 128
GAP_PX = 4
CURVE_PX = 64
# Of the classes of a mask, whose ids are counted on through them: those of Okabe and Ito, and white
# in place of black, which is what did not change.
CLASS_COLOURS = (
    (86, 180, 233), (240, 228, 66), (213, 94, 0), (0, 158, 115),
    (204, 121, 167), (230, 159, 0), (0, 114, 178), (255, 255, 255),
)  # fmt: skip


@dataclass(frozen=True)
class Frame:
    """A picture of a strip as a data URI, with the text below it."""

    image: str
    label: str
    psnr: float | None = None
    ssim: float | None = None


@dataclass(frozen=True)
class Curve:
    """Penalties of the frames in between as a line of an SVG drawing.

    Attributes:
        points: X and y in px with the penalty.
        width: Of the whole strip.
    """

    width: int
    height: int
    points: list[tuple[float, float, float, bool]]

    @property
    def line(self) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in self.points)


@dataclass(frozen=True)
class Strip:
    """One sequence as the page shows it.

    Attributes:
        ends: The pixels of before and after, where both are stored, for what is drawn over them
            later.
    """

    key: str
    kind: str
    change_type: str
    captions: list[str]
    motion: float | None
    frames: list[Frame | None]
    truth: list[Frame | None]
    rebuilt: list[Frame]
    extras: list[Frame]
    keyframes: frozenset[int] = frozenset()
    curve: Curve | None = None
    ends: tuple[np.ndarray, ...] = ()
    entities: tuple[str, ...] = ()


def of_sequence(sample: StoredSequence) -> Strip:
    """A strip of stored frames. Raises DamagedShard."""
    frames, truth, masks = sample.frames(), sample.truth(), sample.masks()
    measures = stats.against_truth(frames, truth)
    labels = _labels(len(frames))
    extras = [_frame(_heat(frames[0], frames[-1]), "difference")]
    extras += _masks(masks, len(sample.meta.get(sequences.MASK_CLASSES, ())))
    labelled_frames: list[Frame | None] = [
        _frame(image, labels[i], measures.get("PSNR", {}).get(i), measures.get("SSIM", {}).get(i))
        for i, image in enumerate(frames)
    ]
    return Strip(
        key=sample.key,
        motion=stats.quality.motion(frames[0], frames[-1]),
        frames=labelled_frames,
        truth=[_frame(truth[i], "true") if i in truth else None for i in range(len(frames))]
        if truth
        else [],
        rebuilt=[],
        extras=extras,
        ends=(frames[0], frames[-1]),
        **_words(sample.meta),
    )


def of_training_sample(sample: TrainingSample) -> Strip:
    """A strip of the images that a training sample holds. Raises DamagedShard."""
    labels = _labels(len(sample.tokens))
    last = len(sample.tokens) - 1
    has_ends = {0, last} <= sample.images.keys()
    return Strip(
        key=sample.key,
        motion=None,
        frames=[
            _frame(sample.image(i), labels[i]) if i in sample.images else None
            for i in range(len(sample.tokens))
        ],
        truth=[],
        rebuilt=[],
        extras=_masks(
            Masks(sample.mask(), sample.mask_before(), sample.mask_after()),
            len(sample.meta.get(sequences.MASK_CLASSES, ())),
        ),
        ends=(sample.image(0), sample.image(last)) if has_ends else (),
        **_words(sample.meta),
    )


def with_scores(strip: Strip, row: score_rows.Row) -> Strip:
    """The strip with its penalties and keyframes."""
    return _with_penalties(strip, np.array(row["penalty"]), row["keyframes"])


def with_tokens(strip: Strip, sample: TrainingSample, rebuilt: np.ndarray | None) -> Strip:
    """The strip with penalties, keyframes, and what its tokens decode to, uint8 [F, H, W, 3]."""
    if sample.scores.shape[1]:
        penalty = penalties(*sample.scores)
        strip = _with_penalties(strip, penalty, sample.meta.get("keyframes", []))
    if rebuilt is None:
        return strip
    return replace(strip, rebuilt=[_frame(image, "from tokens") for image in rebuilt])


def with_change(strip: Strip, change: FoundChange) -> Strip:
    """The strip with the found mask and the boxes of its regions drawn over before and after.

    As it is where nothing was found, or where the images are not stored.
    """
    if change.mask is None or not strip.ends:
        return strip
    names = ("found in before", "found in after")
    drawn = [
        _frame(_marked(image, change), name)
        for image, name in zip(strip.ends, names, strict=True)
        if image.shape[:2] == change.mask.shape
    ]
    return replace(strip, extras=[*strip.extras, *drawn])


def _marked(image: np.ndarray, change: FoundChange) -> np.ndarray:
    """The image with what was found in red and each region's box in yellow."""
    assert change.mask is not None
    drawn = image.copy()
    drawn[change.mask] = drawn[change.mask] // 2 + np.array((127, 0, 0), np.uint8)
    for region in change.regions:
        x0, y0, x1, y1 = region.box
        cv2.rectangle(drawn, (x0 - 1, y0 - 1), (x1, y1), (255, 220, 0), 1)
    return drawn


def _with_penalties(strip: Strip, penalty: np.ndarray, keyframes: list[int]) -> Strip:
    inner = penalty[1:-1]
    top = max(float(inner.max(initial=0)), 1e-12)
    step = STRIP_PX + GAP_PX
    points = [
        (
            (i + 1) * step + STRIP_PX / 2,
            CURVE_PX - 8 - (CURVE_PX - 16) * float(value) / top,
            float(value),
            i + 1 in keyframes,
        )
        for i, value in enumerate(inner)
    ]
    curve = Curve(len(penalty) * step - GAP_PX, CURVE_PX, points)
    return replace(strip, keyframes=frozenset(keyframes), curve=curve if points else None)


def _words(meta: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": str(meta.get("kind", "")).replace("_", " "),
        "change_type": str(meta.get("change_type") or ""),
        "captions": [str(caption) for caption in meta.get("captions", ())],
    }


def _labels(count: int) -> list[str]:
    last = count - 1
    return ["before", *(f"{i}/{last}" for i in range(1, last)), "after"]


def _frame(
    image: np.ndarray, label: str, psnr: float | None = None, ssim: float | None = None
) -> Frame:
    height, width = image.shape[:2]
    if min(height, width) > 2 * STRIP_PX:  # a page of full-size photographs cannot be mailed
        image = resize(image, 2 * STRIP_PX)
    data = encode_image(image, "jpg", 82)
    return Frame(data_url(data, "jpeg"), label, psnr, ssim)


def _masks(masks: Masks, classes: int) -> list[Frame]:
    """The union where it is known, and the sides on which something is seen.

    Black where nothing changed; white, or a colour a class.
    """
    colours = np.zeros((256, 3), np.uint8)
    for class_id in range(1, 256):
        colours[class_id] = 255 if classes <= 1 else CLASS_COLOURS[class_id % len(CLASS_COLOURS)]
    labels = ("change mask", "vanished", "appeared")
    return [
        _frame(colours[mask], label)
        for mask, label in zip(masks, labels, strict=True)
        if mask is not None and (label == labels[0] or mask.any())
    ]


def _heat(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The difference of two images as a heat map, black for none, scaled to its own maximum."""
    change = np.abs(after.astype(np.int16) - before.astype(np.int16)).max(axis=2)
    scaled = (change * (255 / max(int(change.max()), 1))).astype(np.uint8)
    return np.ascontiguousarray(cv2.applyColorMap(scaled, cv2.COLORMAP_INFERNO)[..., ::-1])
