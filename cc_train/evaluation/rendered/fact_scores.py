"""Whether a caption of a pair is right: what it claims against what truly changed.

A fact of a pair is the type of change, the attributes of the object that changed (before the
change; of an added object after it), its place where captions say it, and the new value of a change
of color, material, class or place. Which attributes there are, and how captions state facts, is the
data set's choice (`Facts.grammar`). `judge` compares a caption with them, of several changes each
of its sentences (`change_scores`), `count` sums up the captions of a split, and `with_facts` reads
the facts of pairs whose references are a file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal

from cc_prep.composites import reading, sentences
from cc_prep.datasets.layouts import clevr_change
from cc_prep.errors import UserError
from cc_prep.records import FACT_TYPES, SEVERAL, Facts, ObjectAttributes
from cc_prep.synth import parsing
from cc_prep.synth.parsing import NEW, NEW_FEATURES, TYPE, UNCHANGED, Claims
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import CHANGE, STILL, Item
from cc_train.evaluation.rendered import change_scores
from cc_train.evaluation.rendered.change_scores import Matched

ATTRIBUTES = ("color", "shape", "material", "size", sentences.CLASS)
FACTS = (TYPE, *ATTRIBUTES, reading.PLACE, NEW)
TYPES = (*dict.fromkeys((*FACT_TYPES, *sentences.TYPES)), SEVERAL)
TOLD_APART, EXACT = "told apart", "exact"
# In comparisons; × 100 like all other measures.
MEASURES = (TOLD_APART, TYPE, EXACT)
TITLES = {NEW: "new value"}
UNRECOGNISED = "not recognised"
READING = 2  # counted up whenever the same captions may be judged otherwise against the same facts
Z = 1.959964  # of a 95 % interval
Outcome = Literal["right", "wrong", "not said"]


@dataclass(frozen=True)
class Verdict:
    """How the claims of a caption compare with the facts of its pair.

    Attributes:
        type: The true type of change.
        claimed: The caption's; None where it is not recognised, SEVERAL where it claims more than
            one change.
        outcomes: By fact; the type alone for an unchanged pair, and for one with several changes,
            where all types must be right.
        exact: Nothing wrong is claimed, type and new value are right, and the attributes that are
            said include all attributes of at least one reference, or fit only one object of the
            image. Of several changes all are said, and no other.
        changes: How many changes there are, are claimed, and are right.
    """

    type: str
    claimed: str | None
    outcomes: dict[str, Outcome]
    exact: bool
    changes: Matched


def true_values(facts: Facts) -> dict[str, str]:
    """The true facts of a pair, by the names of FACTS; for an unchanged pair the type alone."""
    if facts.grammar == "composites":
        return reading.true_values(facts)
    attributes = facts.before or facts.after
    if facts.type == UNCHANGED or attributes is None:
        return {TYPE: facts.type}  # of several changes as well
    values = {TYPE: facts.type, **{name: attributes[name] for name in attributes.values}}
    if facts.type in NEW_FEATURES and facts.after is not None:
        values[NEW] = facts.after[facts.type]
    return values


def claims_of(caption: str, facts: Facts) -> Claims:
    """What a caption of a pair claims, by the grammar of its data set."""
    if facts.grammar == "composites":
        return reading.parse(caption, facts)
    return parsing.parse(caption)


def judge(caption: str, facts: Facts, references: Sequence[str]) -> Verdict:
    """The verdict on a caption.

    Where the pair has several changes, each sentence is judged by itself, with no references.

    Args:
        references: True captions of the pair. They tell which looks single its object out. Where
            none of them is a sentence of the grammar, `exact` asks for all attributes, or for such
            as fit one object.
    """
    said = claimed_changes(caption, facts)
    fitting = [
        [_judged(one, alone, references).exact for _, one in said]
        for alone in single_changes(facts)
    ]
    matched = Matched(len(fitting), len(said), len(change_scores.match(fitting)))
    if facts.several:
        return _of_several(facts, [claims_of(one, facts).value(TYPE) for _, one in said], matched)
    return replace(_judged(caption, facts, references), changes=matched)


def claimed_changes(caption: str, facts: Facts) -> list[tuple[int, str]]:
    """The sentences of a caption that say that something changed, and where each begins.

    A sentence that is not recognised counts: it claims what is not the case.
    """
    listed = parsing.statements(caption)
    return [one for one in listed if claims_of(one[1], facts).value(TYPE) != UNCHANGED]


def single_changes(facts: Facts) -> list[Facts]:
    """The facts of each change of a pair by itself."""
    return [
        replace(facts, type=one.type, before=one.before, after=one.after, several=())
        for one in facts.changes
    ]


def _of_several(facts: Facts, claimed: Sequence[str | None], matched: Matched) -> Verdict:
    """The verdict on a caption of a pair with several changes, by the types that it claims."""
    true = Counter(one.type for one in facts.changes)
    kind = SEVERAL if len(claimed) > 1 else next(iter(claimed), UNCHANGED)
    outcomes: dict[str, Outcome] = {TYPE: "right" if Counter(claimed) == true else "wrong"}
    exact = matched.right == matched.true == matched.claimed
    return Verdict(facts.type, kind, outcomes, exact, matched)


def _judged(caption: str, facts: Facts, references: Sequence[str]) -> Verdict:
    """The verdict on a caption of a pair with one change or none, without their number."""
    claims, truth = claims_of(caption, facts), true_values(facts)
    outcomes = {fact: _outcome(claims.value(fact), value) for fact, value in truth.items()}
    stated = {fact for fact, outcome in outcomes.items() if outcome != "not said"}
    surplus = {mark.fact for mark in claims.marks} - truth.keys()
    exact = (
        "wrong" not in outcomes.values()
        and not surplus
        and {TYPE, NEW} & truth.keys() <= stated
        and (
            any(required <= stated for required in _required(truth, references, facts))
            or _single_out(stated, facts)
        )
    )
    return Verdict(facts.type, claims.value(TYPE), outcomes, exact, Matched(0, 0, 0))


def _outcome(claimed: str | None, truth: str) -> Outcome:
    if claimed is None:
        return "not said"
    return "right" if claimed == truth else "wrong"


def _single_out(stated: Set[str], facts: Facts) -> bool:
    """Whether these true attributes fit one object of the image, as far as it is known."""
    objects = facts.objects_after if facts.type == "add" else facts.objects_before
    changed = facts.before or facts.after
    if changed is None:
        return True
    attributes = [name for name in ATTRIBUTES if name in stated]
    fitting = [o for o in objects if all(o[n] == changed[n] for n in attributes)]
    return len(fitting) == 1 and bool(attributes)


def _required(truth: Mapping[str, str], references: Sequence[str], facts: Facts) -> list[set[str]]:
    """The facts that each reference says, always with type and new value."""
    always = {TYPE, NEW} & truth.keys()
    listed = [claims_of(reference, facts) for reference in references]
    of_each = [
        always | {mark.fact for mark in claims.marks if mark.fact in truth}
        for claims in listed
        if claims.grammatical
    ]
    return of_each or [set(truth)]


def wilson(share: float, pairs: int) -> tuple[float, float]:
    """The 95 % interval of a share of some pairs, 0 to 1, by Wilson's score."""
    if not pairs:
        return 0.0, 1.0
    middle = share + Z**2 / (2 * pairs)
    half = Z * math.sqrt(share * (1 - share) / pairs + Z**2 / (4 * pairs**2))
    low, high = ((middle + sign * half) / (1 + Z**2 / pairs) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


@dataclass(frozen=True)
class Share:
    """How many of some pairs are right. `unsaid`: how many of the wrong ones omit the fact."""

    right: int
    pairs: int
    unsaid: int = 0

    @property
    def share(self) -> float:
        """The share, 0 to 1; 0 if there are no pairs."""
        return self.right / self.pairs if self.pairs else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share, 0 to 1, by Wilson's score."""
        return wilson(self.share, self.pairs)

    def to_json(self) -> dict[str, Any]:
        """Counts, share and interval."""
        low, high = self.interval
        wrong = self.pairs - self.right - self.unsaid
        counts = {"right": self.right, "wrong": wrong, "not said": self.unsaid, "pairs": self.pairs}
        return {**counts, "share": self.share, "low": low, "high": high}


@dataclass(frozen=True)
class FactScores:
    """What captions of pairs with facts are right about.

    Attributes:
        changed, unchanged: Of the changed and of the unchanged pairs, how many captions say so; a
            caption whose type is not recognised says neither, and one that claims several types
            says that something changed.
        facts: By name of FACTS, over the changed pairs that have the fact.
        exact: Over the changed pairs, by type.
        confusion: Captions by true type and claimed type, SEVERAL or UNRECOGNISED.
        changes: Of each pair, where some pair has several changes.
    """

    changed: Share
    unchanged: Share
    facts: dict[str, Share]
    exact: dict[str, Share]
    confusion: dict[str, dict[str, int]]
    changes: tuple[Matched, ...] = ()

    @property
    def told_apart(self) -> tuple[float, float, float] | None:
        """Mean recall of changed and unchanged pairs and its 95 % interval, 0 to 1.

        None unless there are both kinds. The interval combines Wilson's intervals of the two
        recalls by Newcombe's square-and-add rule (Statistics in Medicine, 1998).
        """
        both = (self.changed, self.unchanged)
        if not all(share.pairs for share in both):
            return None
        mean = sum(share.share for share in both) / 2
        below, above = (
            math.hypot(*(share.share - share.interval[end] for share in both)) / 2 for end in (0, 1)
        )
        return mean, max(0.0, mean - below), min(1.0, mean + above)

    @property
    def exact_total(self) -> Share:
        """Exact captions of all changed pairs."""
        return _total(self.exact.values())

    def to_json(self) -> dict[str, Any]:
        """The entry `facts` of scores.json; `changes` only where some pair has several."""
        shares = {**self.facts, EXACT: self.exact_total}
        apart = self.told_apart
        return {
            TOLD_APART: apart and {"share": apart[0], "low": apart[1], "high": apart[2]},
            "changed pairs": self.changed.to_json(),
            "unchanged pairs": self.unchanged.to_json(),
            "shares": {TITLES.get(name, name): share.to_json() for name, share in shares.items()},
            "exact by type": {kind: share.to_json() for kind, share in self.exact.items()},
            "confusion": self.confusion,
            **({"changes": change_scores.to_json(self.changes)} if self.changes else {}),
        }

    def table(self, pairs: int) -> str:
        """The scores in Markdown.

        Args:
            pairs: Number of pairs evaluated, with or without facts.
        """
        content = self.to_json()
        with_facts = self.changed.pairs + self.unchanged.pairs
        lines = ["| facts | right, % | 95 % | if said, % | right | wrong | not said | pairs |"]
        lines.append("|---" * 8 + "|")
        if content[TOLD_APART]:
            lines.append(f"| {TOLD_APART} | {_percent(content[TOLD_APART])} | | | | | |")
        rows = {name: content[name] for name in ("changed pairs", "unchanged pairs")}
        rows |= content["shares"]
        for name, share in rows.items():
            if share["pairs"]:
                counts = (f"{share[key]:,}" for key in ("right", "wrong", "not said", "pairs"))
                lines.append(
                    f"| {name} | {_percent(share)} | {_if_said(share)} | {' | '.join(counts)} |"
                )
        claimed = claimed_types(self.confusion)
        lines += ["", f"| true type ↓, caption → | {' | '.join(claimed)} | exact, % | 95 % |"]
        lines.append("|---" * (len(claimed) + 3) + "|")
        for kind, row in self.confusion.items():
            counts = (f"{row[name]:,}" if name in row else "" for name in claimed)
            exact = content["exact by type"].get(kind)
            lines.append(f"| {kind} | {' | '.join(counts)} | {_percent(exact) if exact else '|'} |")
        if self.changes:
            lines += ["", *change_scores.table(content["changes"])]
        if with_facts < pairs:
            lines.append(f"\n{with_facts:,} of {pairs:,} pairs have facts.")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class RenderedScores:
    """What is right of the pairs of an evaluation that have facts.

    Attributes:
        scores: Of all of them together.
        verdicts: Of each, by its id.
        digest: The entry `facts` of a signature, which says what they were judged against.
    """

    scores: FactScores
    verdicts: dict[str, Verdict]
    digest: str


def score(items: Sequence[Item], predictions: Mapping[str, str]) -> RenderedScores:
    """Judges the captions of the pairs that have facts.

    Args:
        items: At least one of them has facts.
        predictions: Captions by the ids of the items.
    """
    verdicts = {
        item.id: judge(predictions[item.id], item.facts, item.references)
        for item in items
        if item.facts is not None
    }
    facts = {item.name: item.facts for item in items if item.facts is not None}
    return RenderedScores(count(verdicts.values()), verdicts, digest(facts))


def count(verdicts: Iterable[Verdict]) -> FactScores:
    """The scores of some captions."""
    listed = list(verdicts)
    changed = [one for one in listed if one.type != UNCHANGED]
    unchanged = [one for one in listed if one.type == UNCHANGED]
    facts: dict[str, Share] = {}
    for fact in FACTS:
        outcomes = Counter(one.outcomes[fact] for one in changed if fact in one.outcomes)
        if outcomes:
            facts[fact] = Share(outcomes["right"], outcomes.total(), outcomes["not said"])
    types = [kind for kind in TYPES if any(one.type == kind for one in listed)]
    exact: dict[str, Share] = {}
    for kind in types:
        of_kind = [one.exact for one in changed if one.type == kind]
        if of_kind:
            exact[kind] = Share(sum(of_kind), len(of_kind))
    confusion = {
        kind: dict(Counter(v.claimed or UNRECOGNISED for v in listed if v.type == kind))
        for kind in types
    }
    return FactScores(
        _recall(changed, [SEVERAL, *(one for one in TYPES if one != UNCHANGED)]),
        _recall(unchanged, [UNCHANGED]),
        facts,
        exact,
        confusion,
        tuple(one.changes for one in listed) if SEVERAL in types else (),
    )


def _recall(verdicts: Sequence[Verdict], types: Sequence[str]) -> Share:
    """The share of captions that claim one of `types`, where all of them should."""
    claimed = [verdict.claimed for verdict in verdicts]
    return Share(sum(kind in types for kind in claimed), len(claimed), claimed.count(None))


def by_group(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """MEASURES, × 100, by group, from the entry `facts` of scores.json.

    Type and exact are over changed pairs, in the total as well.

    Raises:
        KeyError and TypeError: For other JSON.
    """
    groups: dict[str, dict[str, float]] = {"total": {}, CHANGE: {}, STILL: {}}
    if scores[TOLD_APART] is not None:
        groups["total"][TOLD_APART] = 100 * float(scores[TOLD_APART]["share"])
    for group, pairs in ((CHANGE, "changed pairs"), (STILL, "unchanged pairs")):
        if scores[pairs]["pairs"]:
            groups[group][TOLD_APART] = 100 * float(scores[pairs]["share"])
    for measure in (TYPE, EXACT):
        if scores["shares"].get(measure, {"pairs": 0})["pairs"]:
            share = 100 * float(scores["shares"][measure]["share"])
            groups["total"][measure] = groups[CHANGE][measure] = share
    for kind, share in scores["exact by type"].items():
        row = scores["confusion"][kind]
        right = 100 * row.get(kind, 0) / max(1, sum(row.values()))
        groups[kind] = {TYPE: right, EXACT: 100 * float(share["share"])}
    return groups


def claimed_types(confusion: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
    """The columns of a confusion table: the true and the claimed types, UNRECOGNISED last."""
    names = {*confusion, *(name for row in confusion.values() for name in row)}
    return [name for name in (*TYPES, UNRECOGNISED) if name in names]


def _total(shares: Iterable[Share]) -> Share:
    listed = list(shares)
    return Share(sum(one.right for one in listed), sum(one.pairs for one in listed))


def _if_said(share: Mapping[str, int]) -> str:
    """Percent right among the captions that say the fact; empty unless some leave it out."""
    stated = share["right"] + share["wrong"]
    return f"{100 * share['right'] / stated:.1f}" if stated and share["not said"] else ""


def _percent(share: Mapping[str, float]) -> str:
    low, high = 100 * share["low"], 100 * share["high"]
    return f"{100 * share['share']:.1f} | {low:.1f} … {high:.1f}"


def with_facts(items: Sequence[Item], path: str) -> list[Item]:
    """The items with the facts of a rendered data set's facts.json.

    An item is found by its official id, or by one of the names that systems derive from it.

    Raises:
        UserError: For an item that the file does not have, or has as another type of change.
    """
    by_name: dict[str, Facts] = {}
    for image_id, facts in clevr_change.facts_by_image_id(path).items():
        by_name.update(dict.fromkeys((image_id, *coco.aliases(image_id)), facts))
    names = [coco.without_prefix(item.name) for item in items]
    missing = [name for name in names if name not in by_name]
    if missing:
        raise UserError(
            f"{path}: no facts of {len(missing)} of {len(items)} pairs of the references, such as "
            f"{missing[0]!r}",
            f"Ids there look like {next(iter(by_name), None)!r}; give the facts.json of their data",
        )
    with_facts = [
        replace(item, facts=by_name[name]) for item, name in zip(items, names, strict=True)
    ]
    for item in with_facts:
        _require_same_type(item, path)
    return with_facts


def _require_same_type(item: Item, path: str) -> None:
    """Raises UserError if an item's groups and its facts disagree about the type of change."""
    assert item.facts is not None
    types = [group for group in item.groups if group != CHANGE]
    true = STILL if item.facts.type == FACT_TYPES[0] else item.facts.type
    if (types and types[-1] != true) or (CHANGE in item.groups and true == STILL):
        raise UserError(
            f"{path}: {item.name} is {true!r} there and {item.groups[-1]!r} in the references",
            "Give the facts.json of the data set that the references are of",
        )


def digest(facts: Mapping[str, Facts]) -> str:
    """The entry `facts` of a signature: their number, a digest of types and looks, and READING.

    Args:
        facts: By the official ids of the pairs that have some.
    """
    lines = sorted(
        json.dumps(
            [
                name,
                one.type,
                *(
                    [] if attributes is None else _words(attributes)
                    for attributes in (one.before, one.after)
                ),
                [_words(attributes) for attributes in one.objects_before],
                [_words(attributes) for attributes in one.objects_after],
                *(change.to_json() for change in one.several),
            ]
        )
        for name, one in facts.items()
    )
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"{len(facts)}-{digest[:12]},reading={READING}"


def _words(attributes: ObjectAttributes) -> list[str]:
    return list(attributes.values.values())
