"""A renderer's knowledge of a pair, as numbers: classes of change and attributes, places, objects.

All values of a pair without facts are UNKNOWN, which every loss ignores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cc_prep.errors import UserError
from cc_prep.records import FACT_TYPES, Facts, ObjectAttributes
from cc_prep.synth.scenes import COLORS, MATERIALS, SHAPES, SIZES

UNKNOWN = -1
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "color": tuple(COLORS),
    "shape": SHAPES,
    "material": MATERIALS,
    "size": tuple(SIZES),
}
ATTRIBUTE_CLASSES = tuple(len(names) for names in ATTRIBUTES.values())
# Logits of a pair: the type of change, the four attributes of the object, its new colour.
FACT_CLASSES = (len(FACT_TYPES), *ATTRIBUTE_CLASSES, len(COLORS))
REVERSED = {"add": "drop", "drop": "add"}


class PairMasks(NamedTuple):
    """Change masks of a pair, class ids uint8 [H, W] each; None for what is not known.

    Attributes:
        before: What vanished, in the first image.
        after: What appeared, in the second one.
    """

    union: np.ndarray | None
    before: np.ndarray | None
    after: np.ndarray | None

    def reversed(self) -> PairMasks:
        """The masks of the same images in reverse order."""
        return PairMasks(self.union, self.after, self.before)


@dataclass(frozen=True)
class OrderedPair:
    """Two images of a scene in an order, with their captions, facts and masks.

    Attributes:
        first, second: Numbers of the images.
        facts, masks: None where they are not known.
    """

    first: int
    second: int
    captions: tuple[str, ...]
    changed: bool
    facts: Facts | None = None
    masks: PairMasks | None = field(default=None, compare=False)


def reversed_facts(facts: Facts) -> Facts:
    """The facts of (after, before).

    Captions of that pair are the `reversed_captions` of `facts`, which the result does not hold.
    """
    return Facts(
        REVERSED.get(facts.type, facts.type),
        facts.after,
        facts.before,
        facts.objects_after,
        facts.objects_before,
    )


def seen_from(facts: Facts | None, objects: Sequence[ObjectAttributes]) -> Facts | None:
    """The facts of a pair whose first image is replaced by another view of the same scene.

    Args:
        objects: The attributes of the objects in that view, in the order of `facts.objects_before`.

    Returns:
        None if the facts are None or do not fit the objects.
    """
    if facts is None or len(objects) != len(facts.objects_before):
        return None
    before = facts.before
    if before is not None and before not in facts.objects_before:
        return None
    if before is not None:
        before = objects[facts.objects_before.index(before)]
    return replace(facts, before=before, objects_before=tuple(objects))


def fact_classes(facts: Facts | None) -> list[int]:
    """Six classes: type, four attributes and new colour; UNKNOWN for what does not apply."""
    unknown = [UNKNOWN] * len(ATTRIBUTE_CLASSES)
    if facts is None:
        return [UNKNOWN, *unknown, UNKNOWN]
    kind = FACT_TYPES.index(facts.type)
    attributes = facts.after if facts.type == "add" else facts.before
    recoloured = facts.type == "color" and facts.after is not None
    return [
        kind,
        *(unknown if attributes is None else attribute_classes(attributes)),
        attribute_classes(facts.after)[0] if recoloured and facts.after else UNKNOWN,
    ]


def attribute_classes(attributes: ObjectAttributes) -> list[int]:
    """Colour, shape, material and size as classes.

    Raises:
        UserError: For another word.
    """
    for name, names in ATTRIBUTES.items():
        if getattr(attributes, name) not in names:
            raise UserError(
                f"facts: {getattr(attributes, name)!r} is no {name} that can be learned",
                f"Rebuild these shards; a {name} is {', '.join(names)}",
            )
    return [names.index(getattr(attributes, name)) for name, names in ATTRIBUTES.items()]


def cell(attributes: ObjectAttributes | None, grid: tuple[int, int]) -> int:
    """The cell of a grid [rows, columns], row by row, that holds an object's centre."""
    if attributes is None:
        return UNKNOWN
    row, column = cell_at(attributes, grid)
    return row * grid[1] + column


def cell_at(attributes: ObjectAttributes, grid: tuple[int, int]) -> tuple[int, int]:
    """Row and column of an object's centre; the nearest cell for one beside the image."""
    u, v = attributes.location
    rows, columns = grid
    return (
        int(np.clip(int(v * rows), 0, rows - 1)),
        int(np.clip(int(u * columns), 0, columns - 1)),
    )
