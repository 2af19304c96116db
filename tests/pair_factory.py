"""Pairs whose change is known: scenes in numbers (`scene`) and photograph-like ones (`composite`).

A scene has three objects on a grid of 4 × 4. An image's features are the one-hot attributes of each
object at its place and nothing elsewhere, so that whatever a caption says can be read off them.
A composite is an object pasted on a textured ground, which is then disturbed as by a camera.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import cv2
import numpy as np

from cc_prep.formats.training_shards import Features, TrainingSample
from cc_prep.media import images
from cc_prep.records import CHANGE, NO_CHANGE, Facts, ObjectAttributes
from cc_train.data import supervision
from cc_train.data.supervision import SOLIDS
from cc_train.layers.frozen_backbone import BackboneSpec

GRID = 4
SIDE = 8 * GRID
CHANNELS = sum(map(len, SOLIDS.attributes.values()))
DIGEST = "0" * 64
BACKBONE = BackboneSpec("planted", DIGEST, (CHANNELS, GRID, GRID))
SOURCE = BACKBONE.source
COMPOSITE_SIDE = 224
SENTENCES = {
    "color": "the {it} turned {new}",
    "material": "the {it} turned {new}",
    "add": "the {it} appeared",
    "drop": "the {it} disappeared",
    "move": "the {it} moved",
}


def scene(number: int) -> list[TrainingSample]:
    """The changed and the unchanged pair of a scene; the type of change goes round with numbers."""
    rng = np.random.default_rng(number)
    cells = [divmod(int(cell), GRID) for cell in rng.permutation(GRID * GRID)[:4]]
    before = [_attributes(rng, cell) for cell in cells[:3]]
    kind = list(SENTENCES)[number % len(SENTENCES)]
    _after, facts = _changed(before, cells[3], kind, rng)
    if kind == "add":
        before = before[1:]
    unchanged = Facts("none", None, None, tuple(before), tuple(before), ("nothing changed",))
    return [
        _sample(number, CHANGE, facts, [facts_caption(facts)]),
        _sample(number, NO_CHANGE, unchanged, ["nothing changed"]),
    ]


def several(number: int) -> list[TrainingSample]:
    """A scene of four objects with two changes, and the pair of it without a change."""
    rng = np.random.default_rng([number, 2])
    cells = [divmod(int(cell), GRID) for cell in rng.permutation(GRID * GRID)[:6]]
    objects = [_attributes(rng, cell) for cell in cells[:4]]
    kinds = list(SENTENCES)
    chosen = kinds[number % len(kinds)], kinds[number // len(kinds) % len(kinds)]
    changes = [
        _changed([one], free, kind, rng)[1].changes[0]
        for one, free, kind in zip(objects, cells[4:], chosen, strict=False)
    ]
    before, after = (
        tuple(one for one in (*ends, *objects[2:]) if one is not None)
        for ends in zip(*((change.before, change.after) for change in changes), strict=True)
    )
    facts = Facts.of_changes(changes, before, after)
    turned = [Facts.of_changes([change]) for change in (*changes, *facts.reversed().changes)]
    sentences = [facts_caption(one) for one in turned]
    facts = replace(facts, reversed_captions=(". ".join(sentences[2:]),))
    unchanged = Facts("none", None, None, before, before, ("nothing changed",))
    return [
        _sample(number, CHANGE, facts, [". ".join(sentences[:2])]),
        _sample(number, NO_CHANGE, unchanged, ["nothing changed"]),
    ]


def facts_caption(facts: Facts) -> str:
    """The plain sentence that is true of a change."""
    attributes = facts.after if facts.type == "add" else facts.before
    assert attributes is not None
    it = " ".join(attributes[name] for name in ("size", "color", "material", "shape"))
    new = facts.after[facts.type] if facts.after is not None else ""
    return SENTENCES[facts.type].format(it=it, new=new)


def _changed(
    objects: list[ObjectAttributes], free: tuple[int, int], kind: str, rng: np.random.Generator
) -> tuple[list[ObjectAttributes], Facts]:
    first, rest = objects[0], objects[1:]
    before: ObjectAttributes | None = first
    after: ObjectAttributes | None = first
    if kind == "move":
        after = replace(first, location=_place(free))
    elif kind in ("color", "material"):
        others = [value for value in SOLIDS.attributes[kind] if value != first[kind]]
        after = replace(first, values={**first.values, kind: str(rng.choice(others))})
    elif kind == "add":
        before = None
    else:
        after = None
    shown = [tuple([one] if one else []) + tuple(rest) for one in (before, after)]
    facts = Facts(kind, before, after, shown[0], shown[1])
    backwards = facts_caption(facts.reversed())
    return list(shown[1]), replace(facts, reversed_captions=(backwards,))


def _sample(number: int, kind: str, facts: Facts, captions: list[str]) -> TrainingSample:
    values = np.stack([_features(facts.objects_before), _features(facts.objects_after)])
    meta = {
        "captions": captions,
        "kind": kind,
        "facts": facts.to_json(),
        "before": f"{number}.png",
        "after": f"{number}-{kind}.png",
        "height": SIDE,
        "width": SIDE,
    }
    features = Features("planted", DIGEST, (0, 1), values)
    empty = np.zeros((2, 0, 0), np.int16), np.zeros((2, 0, 2), np.float32)
    return TrainingSample(f"planted-train-{number:06d}-{kind}", meta, *empty, {}, features)


def _features(objects: tuple[ObjectAttributes, ...]) -> np.ndarray:
    values = np.zeros((CHANNELS, GRID, GRID), np.float16)
    starts = [0, *np.cumsum([len(names) for names in SOLIDS.attributes.values()])]
    for attributes in objects:
        row, column = supervision.cell_at(attributes, (GRID, GRID))
        for (start, _), value in zip(
            pairwise(starts), supervision.SOLIDS.classes_of_object(attributes), strict=True
        ):
            values[start + value, row, column] = 1
    return values


def _attributes(rng: np.random.Generator, cell: tuple[int, int]) -> ObjectAttributes:
    words = {name: str(rng.choice(names)) for name, names in SOLIDS.attributes.items()}
    return ObjectAttributes(words, _place(cell))


def _place(cell: tuple[int, int]) -> tuple[float, float]:
    row, column = cell
    return (column + 0.5) / GRID, (row + 0.5) / GRID


def with_masks(sample: TrainingSample) -> TrainingSample:
    """The sample with its masks: the cells of the object that changed."""
    facts = Facts.from_json(sample.meta["facts"])
    sides = []
    for attributes in (facts.before, facts.after):
        mask = np.zeros((GRID, GRID), np.uint8)
        if attributes is not None:
            mask[supervision.cell_at(attributes, (GRID, GRID))] = 1
        sides.append(mask.repeat(SIDE // GRID, 0).repeat(SIDE // GRID, 1))
    union, before, after = (
        images.encode_image(mask, "png", 0) for mask in (np.maximum(*sides), *sides)
    )
    return replace(
        sample,
        meta={**sample.meta, "mask_classes": ["change"]},
        mask_png=union,
        mask_before_png=before,
        mask_after_png=after,
    )


def without_facts(sample: TrainingSample) -> TrainingSample:
    """The sample as one of real images, of which nobody knows the facts."""
    return replace(sample, meta={name: v for name, v in sample.meta.items() if name != "facts"})


@dataclass(frozen=True)
class Composite:
    """before, after: uint8 [H, W, 3] RGB. mask: bool [H, W], the pasted object."""

    before: np.ndarray
    after: np.ndarray
    mask: np.ndarray


def composite(seed: int, changed: bool = True, shift: tuple[int, int] = (0, 0)) -> Composite:
    """A pair as a fixed camera sees it: noise of 3 levels, JPEG 90, brightness off by up to 3 %.

    changed: whether an object was added. shift: px by which the second image is moved.
    """
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(60, 190, (9, 9, 3)).astype(np.float32)
    fine = rng.normal(0, 12, (56, 56, 3)).astype(np.float32)
    parts = [
        cv2.resize(x, (COMPOSITE_SIDE, COMPOSITE_SIDE), interpolation=cv2.INTER_CUBIC)
        for x in (coarse, fine)
    ]
    ground = parts[0] + parts[1]
    for _ in range(40):  # edges, at which a moved camera shows
        start, end = (tuple(int(x) for x in rng.integers(0, COMPOSITE_SIDE, 2)) for _ in range(2))
        colour = tuple(float(x) for x in rng.uniform(40, 215, 3))
        cv2.line(ground, start, end, colour, int(rng.integers(1, 6)))
    mask = np.zeros((COMPOSITE_SIDE, COMPOSITE_SIDE), np.uint8)
    centre = tuple(int(x) for x in rng.integers(50, COMPOSITE_SIDE - 50, 2))
    axes = tuple(int(x) for x in rng.integers(12, 32, 2))
    cv2.ellipse(mask, centre, axes, float(rng.uniform(0, 180)), 0, 360, 1, -1)
    inside = mask > 0
    with_object = ground.copy()
    # An object that can be seen: of another colour than the ground behind it.
    colour = (ground[inside].mean(axis=0) + 128) % 256
    with_object[inside] = colour + rng.normal(0, 4, (int(inside.sum()), 3))
    after = np.roll(with_object if changed else ground, shift, axis=(0, 1))
    return Composite(
        _photographed(ground, rng), _photographed(after, rng), inside if changed else inside & False
    )


def _photographed(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    brighter = image * rng.uniform(0.97, 1.03) + rng.normal(0, 3, image.shape)
    pixels = np.rint(brighter).clip(0, 255).astype(np.uint8)
    data = cv2.imencode(".jpg", pixels[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, 90))[1]
    return np.ascontiguousarray(cv2.imdecode(data, cv2.IMREAD_COLOR)[..., ::-1])
