"""What is known of a pair that was made, as numbers: type of change, attributes, places, objects.

All values of a pair without facts are UNKNOWN, which every loss ignores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from cc_prep.composites import sentences
from cc_prep.errors import UserError
from cc_prep.records import FACT_TYPES, REVERSED, Facts, ObjectAttributes
from cc_prep.synth.scenes import COLORS, MATERIALS, SHAPES, SIZES

UNKNOWN = -1


@dataclass(frozen=True)
class FactVocabulary:
    """What of facts is learned: each word is a class of a classifier.

    Attributes:
        types: Of change, `none` first.
        attributes: The values of each attribute of an object.
        new: The attributes that may get a new value, which is a fact of its own.
    """

    types: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]]
    new: tuple[str, ...]

    @property
    def attribute_classes(self) -> tuple[int, ...]:
        """How many values each attribute has."""
        return tuple(map(len, self.attributes.values()))

    @property
    def fact_classes(self) -> tuple[int, ...]:
        """How many classes each fact of a pair has: type, attributes, new values."""
        new = (len(self.attributes[name]) for name in self.new)
        return (len(self.types), *self.attribute_classes, *new)

    @property
    def fact_names(self) -> tuple[str, ...]:
        """The names of these facts."""
        return ("type", *self.attributes, *(f"new_{name}" for name in self.new))

    @property
    def added(self) -> tuple[int, ...]:
        """The types whose object is in the second image alone, as classes."""
        return tuple(i for i, kind in enumerate(self.types) if kind in sentences.ADDED)

    @classmethod
    def of(cls, values: Iterable[Any]) -> FactVocabulary:
        """The vocabulary of the facts in samples' JSON, of which some are None.

        Without a pair of `cc-prep composites` it is SOLIDS.

        Raises:
            UserError: For another form.
        """
        known = [Facts.of_sample({"facts": value}) for value in values if value is not None]
        pasted = [one for one in known if one is not None and one.grammar != "synth"]
        if not pasted:
            return SOLIDS
        if len(pasted) < len(known):
            raise UserError(
                "some of these shards hold facts of rendered solids, others of composed pairs",
                "Train on one kind of them",
            )
        objects = [one for facts in pasted for one in (*facts.objects_before, *facts.objects_after)]
        objects += [one for f in pasted for one in (f.before, f.after) if one is not None]
        names = sorted({name for one in objects for name in one.values})
        attributes = {name: tuple(sorted({one[name] for one in objects} - {""})) for name in names}
        new = sorted({sentences.NEW[f.type] for f in pasted if f.type in sentences.NEW})
        types = {f.type for f in pasted} | {REVERSED[f.type] for f in pasted}
        ordered = tuple(kind for kind in sentences.TYPES if kind in {*types, sentences.TYPES[0]})
        return cls(ordered, attributes, tuple(new))

    def to_json(self) -> dict[str, Any]:
        return {"types": self.types, "attributes": dict(self.attributes), "new": self.new}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FactVocabulary:
        attributes = {name: tuple(values) for name, values in value["attributes"].items()}
        return cls(tuple(value["types"]), attributes, tuple(value["new"]))

    def classes(self, facts: Facts | None) -> list[int]:
        """The class of each fact of a pair; UNKNOWN for what does not apply, as to several changes.

        Raises:
            UserError: For another word.
        """
        new = [UNKNOWN] * len(self.new)
        if facts is None or facts.several:
            return [UNKNOWN] * (1 + len(self.attributes)) + new
        for i, name in enumerate(self.new):
            if facts.after is not None and sentences.NEW.get(facts.type) == name:
                new[i] = self._class(name, facts.after[name])
        if facts.type not in self.types:
            raise UserError(
                f"facts: {facts.type!r} is no type of change that can be learned",
                f"Use shards with the facts of this training; a type is {', '.join(self.types)}",
            )
        one = facts.before or facts.after
        return [
            self.types.index(facts.type),
            *([UNKNOWN] * len(self.attributes) if one is None else self.classes_of_object(one)),
            *new,
        ]

    def classes_of_object(self, attributes: ObjectAttributes) -> list[int]:
        """The class of each attribute of an object; UNKNOWN where it is not known.

        Raises:
            UserError: For another word.
        """
        words = attributes.values
        return [self._class(name, words.get(name, "")) for name in self.attributes]

    def _class(self, name: str, value: str) -> int:
        if not value and name in sentences.NEW.values():
            return UNKNOWN
        if value not in self.attributes[name]:
            raise UserError(
                f"facts: {value!r} is no {name} that can be learned",
                f"Use shards with the facts of this training; a {name} is "
                f"{', '.join(self.attributes[name])}",
            )
        return self.attributes[name].index(value)


# Of the solids that `cc-prep synth` renders.
SOLIDS = FactVocabulary(
    FACT_TYPES,
    {"color": tuple(COLORS), "shape": SHAPES, "material": MATERIALS, "size": tuple(SIZES)},
    ("color",),
)


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


def seen_from(facts: Facts | None, objects: Sequence[ObjectAttributes]) -> Facts | None:
    """The facts of a pair whose first image is replaced by another view of the same scene.

    Args:
        objects: The attributes of the objects in that view, in the order of `facts.objects_before`.

    Returns:
        None if the facts are None or do not fit the objects.
    """
    if facts is None or len(objects) != len(facts.objects_before):
        return None
    seen = dict(zip(map(id, facts.objects_before), objects, strict=True))
    changes = []
    for change in facts.changes:
        alike = [one for one in facts.objects_before if one == change.before]
        if change.before is not None and not alike:
            return None
        changes.append(replace(change, before=seen[id(alike[0])] if alike else None))
    return replace(
        Facts.of_changes(changes, tuple(objects), facts.objects_after, grammar=facts.grammar),
        reversed_captions=facts.reversed_captions,
    )


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
