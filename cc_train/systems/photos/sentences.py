"""Changes in words: "a person moved from the left to the middle"."""

from __future__ import annotations

from collections.abc import Sequence

from cc_train.captioner import Change

Box = tuple[float, float, float, float]
NOTHING = "nothing changed"
EQUAL = "the two images are equal"
NOT_SURE = "not sure: "
UNLIKE = NOT_SURE + "the two images seem to show different views"
UNCLEAR = NOT_SURE + "nothing that is known of changes fits these images"
ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")


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
    left, top, right, bottom = box
    return tuple(min(2, int(1.5 * (one + two))) for one, two in ((top, bottom), (left, right)))  # type: ignore[return-value]


def _sentence(name: str, change: Change) -> str:
    before, after = change.before, change.after
    if change.kind == "moved" and before is not None and after is not None:
        ends = [_place(box) for box in (before, after)]
        if ends[0] == ends[1]:
            return f"{name} moved {_where(after)}"
        return f"{name} moved from {ends[0]} to {ends[1]}"
    box = after or before
    assert box is not None, change
    if change.kind == "replaced":
        return f"{name} was replaced by {_name(change.new, False)} {_where(box)}"
    return f"{name} {change.kind} {_where(box)}"


def _name(label: str, again: bool) -> str:
    if not label:
        return "something else" if again else "something"
    if again:
        return f"another {label}"
    return f"{'an' if label[0] in 'aeiou' else 'a'} {label}"


def _place(box: Box) -> str:
    row, column = cell(box)
    return f"the {' '.join(filter(None, (ROWS[row], COLUMNS[column]))) or 'middle'}"


def _where(box: Box) -> str:
    """ "in the middle", "on the left", "at the top right"."""
    row, column = cell(box)
    preposition = "at" if ROWS[row] else "on" if COLUMNS[column] else "in"
    return f"{preposition} {_place(box)}"
