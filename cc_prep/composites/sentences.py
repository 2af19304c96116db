"""Sentences for composed pairs: what happened, to what, and where.

"a car appeared at the top left", "the picture became brighter". Each type of change is the reverse
of one of the types, so that every pair can be told both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cc_prep.records import REVERSED, Facts, ObjectAttributes

CLASS, COLOR = "class", "color"  # the attributes of an object
TEXT = "text"  # the class of what was written into a picture
TYPES = tuple(REVERSED)
# Types of which no object is the cause.
OF_PICTURE = (
    "brighter",
    "darker",
    "blurred",
    "sharper",
    "black_and_white",
    "colored",
    "cropped",
    "uncropped",
)
ADDED = ("add", "text_added")  # types whose object is in the second image alone
NEW = {"color": COLOR, "replace": CLASS}  # types that give an attribute of the object a new value
COLORS = {
    "red": (215, 40, 40),
    "orange": (240, 140, 30),
    "yellow": (250, 215, 40),
    "green": (45, 155, 60),
    "blue": (40, 85, 215),
    "purple": (140, 60, 175),
    "pink": (245, 130, 180),
}
ROWS, COLUMNS = ("top", "", "bottom"), ("left", "", "right")  # of the grid of places
# {a}, {the}: the object with its article. {where}: its place. {new}: its new color, class or place.
PLAIN = {
    "none": "nothing changed",
    "add": "{a} appeared {where}",
    "drop": "{a} disappeared {where}",
    "move": "{a} moved from {place} to {new}",
    "replace": "{a} was replaced by {new} {where}",
    "color": "{a} became {new} {where}",
    "text_added": "text appeared {where}",
    "text_removed": "text disappeared {where}",
    "brighter": "the picture became brighter",
    "darker": "the picture became darker",
    "blurred": "the picture became blurred",
    "sharper": "the picture became sharper",
    "black_and_white": "the picture became black and white",
    "colored": "the picture became colored",
    "cropped": "the picture was cropped",
    "uncropped": "the picture shows more than before",
}
RICH: dict[str, tuple[str, ...]] = {
    "none": (
        "nothing has changed",
        "there is no difference",
        "both pictures show the same",
        "no change was made",
        "everything is as it was",
    ),
    "add": (
        "{a} was added {where}",
        "there is now {a} {where}",
        "someone put {a} {where}",
        "{a} has appeared {where}",
        "{a} is new {where}",
    ),
    "drop": (
        "{the} {where} is gone",
        "{the} {where} was removed",
        "someone took away {the} {where}",
        "{the} {where} has disappeared",
        "there is no longer {a} {where}",
    ),
    "move": (
        "{the} was moved from {place} to {new}",
        "someone moved {the} from {place} to {new}",
        "{the} is no longer at {place} but at {new}",
        "{the} went from {place} to {new}",
    ),
    "replace": (
        "{the} {where} turned into {new}",
        "someone replaced {the} {where} by {new}",
        "there is now {new} in place of {the} {where}",
        "{the} {where} has been replaced by {new}",
    ),
    "color": (
        "{the} {where} turned {new}",
        "{the} {where} is now {new}",
        "someone painted {the} {where} {new}",
        "the color of {the} {where} changed to {new}",
    ),
    "text_added": (
        "text was added {where}",
        "something was written {where}",
        "there is now text {where}",
    ),
    "text_removed": (
        "the text {where} is gone",
        "the text {where} was removed",
        "there is no longer text {where}",
    ),
    "brighter": ("the picture is brighter now", "the exposure was raised", "it got lighter"),
    "darker": ("the picture is darker now", "the exposure was lowered", "it got darker"),
    "blurred": ("the picture is blurred now", "the picture lost its sharpness"),
    "sharper": ("the picture is sharper now", "the blur is gone"),
    "black_and_white": ("the picture is black and white now", "the colors were removed"),
    "colored": ("the picture is colored now", "the colors were restored"),
    "cropped": ("a part of the picture was cut out", "the edges of the picture were cut off"),
    "uncropped": ("the view is wider than before", "the picture was extended at its edges"),
}
# Where the new color is not known, as of a tinted object that got its own color back.
RECOLORED = "{a} changed its color {where}"
RICH_RECOLORED = ("{the} {where} has another color now", "the color of {the} {where} changed")


def cell(location: Sequence[float]) -> tuple[int, int]:
    """Row and column of a place (u, v) in a grid of 3 × 3; the nearest for one outside."""
    u, v = location
    return min(2, max(0, int(3 * v))), min(2, max(0, int(3 * u)))


def place(location: Sequence[float]) -> str:
    """The name of a place: "the top left", "the middle"."""
    row, column = cell(location)
    return f"the {' '.join(filter(None, (ROWS[row], COLUMNS[column]))) or 'middle'}"


def where(location: Sequence[float]) -> str:
    """A place with its preposition: "in the middle", "on the left", "at the top right"."""
    row, column = cell(location)
    preposition = "at" if ROWS[row] else "on" if COLUMNS[column] else "in"
    return f"{preposition} {place(location)}"


PLACES = tuple(place(((c + 0.5) / 3, (r + 0.5) / 3)) for r in range(3) for c in range(3))


def with_article(name: str) -> str:
    """ "a car", "an orange"."""
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def plain(facts: Facts) -> str:
    """The one plain sentence that is true of a pair."""
    template = RECOLORED if _to_unknown_color(facts) else PLAIN[facts.type]
    return template.format(**_words(facts))


def rich(facts: Facts, rng: np.random.Generator, count: int = 4) -> list[str]:
    """Up to `count` different sentences that are true of a pair."""
    templates = RICH_RECOLORED if _to_unknown_color(facts) else RICH[facts.type]
    chosen = rng.permutation(len(templates))[:count]
    return [templates[i].format(**_words(facts)) for i in chosen]


def _to_unknown_color(facts: Facts) -> bool:
    return facts.type == "color" and not (facts.after and facts.after[COLOR])


def _words(facts: Facts) -> Mapping[str, str]:
    one = facts.before or facts.after
    if one is None:
        return {}
    name = _name(one)
    words = {"a": with_article(name), "the": f"the {name}", "where": where(one.location)}
    words |= {"place": place(one.location), "new": new_value(facts)}
    if facts.type == "replace":
        words["new"] = with_article(words["new"])
    return words


def _name(one: ObjectAttributes) -> str:
    """ "car", "red car"."""
    return " ".join(filter(None, (one[COLOR], one[CLASS])))


def new_value(facts: Facts) -> str:
    """What is new of the object that changed: its color, class or place; empty for other types."""
    if facts.after is None:
        return ""
    if facts.type == "move":
        return place(facts.after.location)
    return facts.after[NEW[facts.type]] if facts.type in NEW else ""
