"""Changes in words: "a person moved from the left to the middle"."""

from __future__ import annotations

from collections.abc import Sequence

from cc_prep.composites import sentences as places
from cc_train.captioner import Change

Box = tuple[float, float, float, float]
NOTHING = "nothing changed"
UNLIKE = "the two images seem to show different views"
UNCLEAR = "nothing that is known of changes fits these images"


def text(picture: str, changes: Sequence[Change]) -> str:
    """All changes of a pair, each as a sentence.

    Args:
        picture: What the picture as a whole became; "" if nothing.
        changes: Of objects.
    """
    parts = [f"the picture {picture}"] if picture else []
    known: set[tuple[str, str]] = set()
    for change in changes:
        name = _name(change.label, (change.label, change.kind) in known)
        known.add((change.label, change.kind))
        parts.append(_sentence(name, change))
    return ". ".join(parts) or NOTHING


def cell(box: Box) -> tuple[int, int]:
    """Row and column of the middle of a box in a grid of 3 × 3."""
    return places.cell(_middle(box))


def _sentence(name: str, change: Change) -> str:
    before, after = change.before, change.after
    if change.kind == "moved" and before is not None and after is not None:
        ends = [places.place(_middle(box)) for box in (before, after)]
        if ends[0] == ends[1]:
            return f"{name} moved {places.where(_middle(after))}"
        return f"{name} moved from {ends[0]} to {ends[1]}"
    box = after or before
    assert box is not None, change
    if change.kind == "replaced":
        return f"{name} was replaced by {_name(change.new, False)} {places.where(_middle(box))}"
    return f"{name} {change.kind} {places.where(_middle(box))}"


def _name(label: str, again: bool) -> str:
    if not label:
        return "something else" if again else "something"
    if again:
        return f"another {label}"
    return places.with_article(label)


def _middle(box: Box) -> tuple[float, float]:
    left, top, right, bottom = box
    return (left + right) / 2, (top + bottom) / 2
