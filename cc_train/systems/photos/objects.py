"""What happened to which object: the verdict of the comparison joined with what is detected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cc_prep.composites.sentences import OF_PICTURE
from cc_prep.models.nanodet import Detection
from cc_train.captioner import Change
from cc_train.systems.photos.pictures import DIFFERS

Box = tuple[float, float, float, float]
NAMED = 0.15  # least score of a detection where the comparison says that something changed
ALONE = 0.4  # least score of a detection that speaks without the comparison
COUNTERPART = 0.4  # share of a detection's score from which on another is the same object
SAME = 0.3  # intersection over union of the boxes of one object
NEAR = 0.06  # how far outside a box the place of a change may be, as a share of the picture
ALIKE_IN_SIZE = 2.5  # how many times larger a moved object may be at its other place
INSIDE = 0.6  # share of a box inside another, from which on both are of one object
PEAK = 0.25  # share of the largest weight of a map, of the places that belong to it
UNCHANGED, CHANGED = "none", "changed"
KINDS = {"add": "appeared", "drop": "disappeared", "move": "moved"}


@dataclass(frozen=True)
class Verdict:
    """What the comparison says of a pair.

    Attributes:
        type: One that the comparison was trained on, such as `add`.
        chance: The chance that it gives this type, 0 to 1.
        before: Where the change is in the image before, weights [rows, columns].
        after: The same in the image after.
    """

    type: str
    chance: float
    before: np.ndarray
    after: np.ndarray

    @classmethod
    def of(
        cls, types: Sequence[str], chances: np.ndarray, before: np.ndarray, after: np.ndarray
    ) -> Verdict:
        """The verdict of the chances of some types, and of both maps."""
        best = int(chances.argmax())
        return cls(types[best], float(chances[best]), before, after)


def find(
    verdict: Verdict,
    before: Sequence[Detection],
    after: Sequence[Detection],
    difference: Callable[[Box], float],
    new_color: Callable[[Box], str],
) -> list[Change]:
    """The changes of objects, that of the comparison first.

    Args:
        verdict: Of the comparison.
        before: What is detected in the image before.
        after: The same in the image after.
        difference: How much the pixels of a box differ, in levels.
        new_color: The color that what differs in a box got; empty for none.
    """
    went, came = _without(before, after), _without(after, before)
    changes = []
    if verdict.type not in (UNCHANGED, *OF_PICTURE):
        main = _replaced(verdict, before, after) or _main(verdict, went, came)
        changes.append(_recolored(main, verdict, before, after, new_color))
    for kind, candidates in (("disappeared", went), ("appeared", came)):
        for one in candidates:
            known = [box for change in changes for box in (change.before, change.after)]
            if one.score < ALONE or difference(one.box) < DIFFERS or _covered(one.box, known):
                continue
            changes.append(_change(kind, one))
    return _with_moves(changes)


def _without(own: Sequence[Detection], others: Sequence[Detection]) -> list[Detection]:
    """Detections without a counterpart in the other image."""
    return [
        one
        for one in own
        if not any(
            other.score >= COUNTERPART * one.score and _overlap(one.box, other.box) > SAME
            for other in others
        )
    ]


def _replaced(
    verdict: Verdict, before: Sequence[Detection], after: Sequence[Detection]
) -> Change | None:
    """One thing that is at the place of another; None where the comparison says otherwise."""
    if verdict.type in KINDS:
        return None
    one, other = _at(before, _peak(verdict.before)), _at(after, _peak(verdict.after))
    if one is None or other is None or one.label == other.label:
        return None
    score = min(one.score, other.score)
    if score < ALONE or _overlap(one.box, other.box) <= SAME:
        return None
    return Change("replaced", one.label, one.box, other.box, other.label, score)


def _main(verdict: Verdict, went: Sequence[Detection], came: Sequence[Detection]) -> Change:
    """The change that the comparison sees, with the name of what is detected there."""
    at_before, at_after = _peak(verdict.before), _peak(verdict.after)
    gone, new = _at(went, at_before), _at(came, at_after)
    kind = KINDS.get(verdict.type)
    if kind is None:  # of color or material, which says of photographs that something changed
        if gone is not None and new is not None and gone.label != new.label:
            gone, new = (gone, None) if gone.score > new.score else (None, new)
        if (gone is None) == (new is None):
            return Change(CHANGED, "", _around(verdict.before), _around(verdict.after))
        kind = "disappeared" if new is None else "appeared"
    if kind == "moved":
        surest = max((one for one in (gone, new) if one), key=lambda one: one.score, default=None)
        start = _around(verdict.before) if gone is None else gone.box
        end = _around(verdict.after) if new is None else new.box
        if surest is None:
            return Change(kind, "", start, end)
        return Change(kind, surest.label, start, end, score=surest.score)
    one = gone if kind == "disappeared" else new
    if one is not None:
        return _change(kind, one)
    if kind == "disappeared":
        return Change(kind, "", _around(verdict.before), None)
    return Change(kind, "", None, _around(verdict.after))


def _recolored(
    change: Change,
    verdict: Verdict,
    before: Sequence[Detection],
    after: Sequence[Detection],
    new_color: Callable[[Box], str],
) -> Change:
    """A change of looks with its color and the name of what stayed, where there are such."""
    color = new_color(change.after) if change.kind == CHANGED and change.after else ""
    if not color:
        return change
    one, other = _at(before, _peak(verdict.before)), _at(after, _peak(verdict.after))
    if one is None or other is None or one.label != other.label:
        return replace(change, kind=f"became {color}")
    score = min(one.score, other.score)
    return Change(f"became {color}", one.label, one.box, other.box, score=score)


def _change(kind: str, one: Detection) -> Change:
    if kind == "disappeared":
        return Change(kind, one.label, one.box, None, score=one.score)
    return Change(kind, one.label, None, one.box, score=one.score)


def _with_moves(changes: Sequence[Change]) -> list[Change]:
    """One move in place of one thing that went and a like one that came."""
    joined: list[Change] = []
    for change in changes:
        for number, other in enumerate(joined):
            ends = {one.kind: one for one in (change, other)}
            if ends.keys() == {"appeared", "disappeared"} and _same(change, other):
                move = replace(ends["appeared"], kind="moved", before=ends["disappeared"].before)
                joined[number] = replace(move, score=max(change.score, other.score))
                break
        else:
            joined.append(change)
    return joined


def _same(one: Change, other: Change) -> bool:
    boxes = (one.before or one.after, other.before or other.after)
    small, large = sorted(_area(box) for box in boxes if box is not None)
    return one.label == other.label != "" and large <= ALIKE_IN_SIZE * small


def _at(detections: Sequence[Detection], place: tuple[float, float]) -> Detection | None:
    """The surest detection at a place."""
    x, y = place
    there = [
        one
        for one in detections
        if one.score >= NAMED
        and one.box[0] - NEAR <= x <= one.box[2] + NEAR
        and one.box[1] - NEAR <= y <= one.box[3] + NEAR
    ]
    return max(there, key=lambda one: one.score, default=None)


def _peak(weights: np.ndarray) -> tuple[float, float]:
    """Where a map has its largest weight: x and y as shares of the picture."""
    row, column = np.unravel_index(weights.argmax(), weights.shape)
    return (float(column) + 0.5) / weights.shape[1], (float(row) + 0.5) / weights.shape[0]


def _around(weights: np.ndarray) -> Box:
    """The box of the places of a map that have some of its largest weight."""
    rows, columns = (weights >= PEAK * weights.max()).nonzero()
    height, width = weights.shape
    return (
        float(columns.min()) / width,
        float(rows.min()) / height,
        float(columns.max() + 1) / width,
        float(rows.max() + 1) / height,
    )


def _covered(box: Box, others: Sequence[Box | None]) -> bool:
    """Whether a box is largely inside another, or another inside it."""
    return any(
        _shared(box, other) > INSIDE * min(_area(box), _area(other))
        for other in others
        if other is not None
    )


def _overlap(one: Box, other: Box) -> float:
    shared = _shared(one, other)
    return shared / max(_area(one) + _area(other) - shared, 1e-9)


def _shared(one: Box, other: Box) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
