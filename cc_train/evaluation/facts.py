"""Whether a caption of a rendered pair is right: what it claims against what truly changed.

A fact of a pair is the type of change, the look of the object that changed (before the change; of
an added object after it), and the new value of a change of color or material.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from cc_prep.records import Facts
from cc_prep.synth import parsing
from cc_prep.synth.parsing import NEW, NEW_FEATURES, TYPE, UNCHANGED

LOOKS = ("color", "shape", "material", "size")
FACTS = (TYPE, *LOOKS, NEW)
Outcome = Literal["right", "wrong", "not said"]


@dataclass(frozen=True)
class Verdict:
    """How the claims of a caption compare with the facts of its pair.

    type: the true type of change. claimed: the caption's; None where it is not recognised, SEVERAL
        where it claims more than one change.
    outcomes: by fact; for an unchanged pair the type alone.
    exact: nothing wrong is claimed, type and new value are right, and the looks that are said
        include all looks of at least one reference, or fit only one object of the image.
    """

    type: str
    claimed: str | None
    outcomes: dict[str, Outcome]
    exact: bool


def true_values(facts: Facts) -> dict[str, str]:
    """The true facts of a pair, by the names of FACTS; for an unchanged pair the type alone."""
    looks = facts.before or facts.after
    if facts.type == UNCHANGED or looks is None:
        return {TYPE: facts.type}
    values = {TYPE: facts.type, **{name: str(getattr(looks, name)) for name in LOOKS}}
    if facts.type in NEW_FEATURES and facts.after is not None:
        values[NEW] = str(getattr(facts.after, facts.type))
    return values


def judge(caption: str, facts: Facts, references: Sequence[str]) -> Verdict:
    """The verdict on a caption.

    references: true captions of the pair. They tell which looks single its object out. Where none
    of them is a sentence of the grammar, `exact` asks for all looks, or for such as fit one object.
    """
    claims, truth = parsing.parse(caption), true_values(facts)
    outcomes = {fact: _outcome(claims.value(fact), value) for fact, value in truth.items()}
    stated = {fact for fact, outcome in outcomes.items() if outcome != "not said"}
    surplus = {mark.fact for mark in claims.marks} - truth.keys()
    exact = (
        "wrong" not in outcomes.values()
        and not surplus
        and {TYPE, NEW} & truth.keys() <= stated
        and (
            any(required <= stated for required in _required(truth, references))
            or _single_out(stated, facts)
        )
    )
    return Verdict(facts.type, claims.value(TYPE), outcomes, exact)


def _outcome(claimed: str | None, truth: str) -> Outcome:
    if claimed is None:
        return "not said"
    return "right" if claimed == truth else "wrong"


def _single_out(stated: Set[str], facts: Facts) -> bool:
    """Whether the true looks of these names fit one object of the image, as far as it is known."""
    objects = facts.objects_after if facts.type == "add" else facts.objects_before
    changed = facts.before or facts.after
    looks = [name for name in LOOKS if name in stated]
    fitting = [o for o in objects if all(getattr(o, n) == getattr(changed, n) for n in looks)]
    return len(fitting) == 1 and bool(looks)


def _required(truth: Mapping[str, str], references: Sequence[str]) -> list[set[str]]:
    """The facts that each reference says, always with type and new value."""
    always = {TYPE, NEW} & truth.keys()
    sentences = [parsing.parse(reference) for reference in references]
    of_each = [
        always | {mark.fact for mark in claims.marks if mark.fact in truth}
        for claims in sentences
        if claims.grammatical
    ]
    return of_each or [set(truth)]
