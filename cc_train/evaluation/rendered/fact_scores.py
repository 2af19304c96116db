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
from typing import Literal

from cc_prep.composites import reading, sentences
from cc_prep.datasets.layouts import clevr_change
from cc_prep.errors import UserError
from cc_prep.records import FACT_TYPES, SEVERAL, Facts, ObjectAttributes
from cc_prep.synth import parsing
from cc_prep.synth.parsing import NEW, NEW_FEATURES, TYPE, UNCHANGED, Claims
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import CHANGE, STILL, Item
from cc_train.evaluation.evaluation_files import TOTAL, FactScores, Interval, Share
from cc_train.evaluation.rendered import change_scores
from cc_train.evaluation.rendered.change_scores import Matched

ATTRIBUTES = ("color", "shape", "material", "size", sentences.CLASS)
FACTS = (TYPE, *ATTRIBUTES, reading.PLACE, NEW)
TYPES = (*dict.fromkeys((*FACT_TYPES, *sentences.TYPES)), SEVERAL)
TOLD_APART, EXACT = "told apart", "exact"
# In comparisons; × 100 like all other measures.
MEASURES = (TOLD_APART, TYPE, EXACT)
TITLES = {NEW: "new value"}
SHARES = (*(TITLES.get(fact, fact) for fact in FACTS), EXACT)  # in the order of tables
UNRECOGNISED = "not recognised"
READING = 2  # counted up whenever the same captions may be judged otherwise against the same facts
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

    def table(self, pairs: int) -> str:
        """The scores in Markdown.

        Args:
            pairs: Number of pairs evaluated, with or without facts.
        """
        return table(self.scores, pairs)


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
    shares: dict[str, Share] = {}
    for fact in FACTS:
        outcomes = Counter(one.outcomes[fact] for one in changed if fact in one.outcomes)
        if outcomes:
            shares[TITLES.get(fact, fact)] = Share.of_right(
                outcomes["right"], outcomes.total(), outcomes["not said"]
            )
    types = [kind for kind in TYPES if any(one.type == kind for one in listed)]
    exact: dict[str, Share] = {}
    for kind in types:
        of_kind = [one.exact for one in changed if one.type == kind]
        if of_kind:
            exact[kind] = Share.of_right(sum(of_kind), len(of_kind))
    shares[EXACT] = Share.of_right(sum(one.exact for one in changed), len(changed))
    confusion = {
        kind: dict(Counter(v.claimed or UNRECOGNISED for v in listed if v.type == kind))
        for kind in types
    }
    of_changed = _recall(changed, [SEVERAL, *(one for one in TYPES if one != UNCHANGED)])
    of_unchanged = _recall(unchanged, [UNCHANGED])
    changes = change_scores.to_json(one.changes for one in listed)
    return FactScores(
        told_apart=_told_apart(of_changed, of_unchanged),
        changed_pairs=of_changed,
        unchanged_pairs=of_unchanged,
        shares=shares,
        exact_by_type=exact,
        confusion=confusion,
        **({"changes": changes} if SEVERAL in types else {}),
    )


def _recall(verdicts: Sequence[Verdict], types: Sequence[str]) -> Share:
    """The share of captions that claim one of `types`, where all of them should."""
    claimed = [verdict.claimed for verdict in verdicts]
    right = sum(kind in types for kind in claimed)
    return Share.of_right(right, len(claimed), claimed.count(None))


def _told_apart(*recalls: Share) -> Interval | None:
    """The mean of two recalls; None unless there are pairs of both kinds.

    The interval combines Wilson's intervals of the two recalls by Newcombe's square-and-add rule
    (Statistics in Medicine, 1998).
    """
    if not all(one.pairs for one in recalls):
        return None
    mean = sum(one.share for one in recalls) / 2
    below = math.hypot(*(one.share - one.low for one in recalls)) / 2
    above = math.hypot(*(one.share - one.high for one in recalls)) / 2
    return Interval(share=mean, low=max(0.0, mean - below), high=min(1.0, mean + above))


def table(scores: FactScores, pairs: int) -> str:
    """The scores in Markdown.

    Args:
        pairs: Number of pairs evaluated, with or without facts.
    """
    with_facts = scores.changed_pairs.pairs + scores.unchanged_pairs.pairs
    lines = ["| facts | right, % | 95 % | if said, % | right | wrong | not said | pairs |"]
    lines.append("|---" * 8 + "|")
    if scores.told_apart:
        lines.append(f"| {TOLD_APART} | {_percent(scores.told_apart)} | | | | | |")
    for name, share in rows(scores).items():
        counts = " | ".join(
            f"{n:,}" for n in (share.right, share.wrong, share.not_said, share.pairs)
        )
        lines.append(f"| {name} | {_percent(share)} | {_if_said(share)} | {counts} |")
    claimed = claimed_types(scores.confusion)
    lines += ["", f"| true type ↓, caption → | {' | '.join(claimed)} | exact, % | 95 % |"]
    lines.append("|---" * (len(claimed) + 3) + "|")
    for kind, row in scores.confusion.items():
        cells = " | ".join(f"{row[name]:,}" if name in row else "" for name in claimed)
        exact = scores.exact_by_type.get(kind)
        lines.append(f"| {kind} | {cells} | {_percent(exact) if exact else '|'} |")
    if scores.changes:
        lines += ["", *change_scores.table(scores.changes)]
    if with_facts < pairs:
        lines.append(f"\n{with_facts:,} of {pairs:,} pairs have facts.")
    return "\n".join(lines) + "\n"


def rows(scores: FactScores) -> dict[str, Share]:
    """The shares of some pairs by their names in tables."""
    shares = {"changed pairs": scores.changed_pairs, "unchanged pairs": scores.unchanged_pairs}
    shares |= {name: scores.shares[name] for name in SHARES if name in scores.shares}
    return {name: share for name, share in shares.items() if share.pairs}


def by_group(scores: FactScores) -> dict[str, dict[str, float]]:
    """MEASURES, × 100, by group. Type and exact are over changed pairs, in the total as well."""
    groups: dict[str, dict[str, float]] = {TOTAL: {}, CHANGE: {}, STILL: {}}
    if scores.told_apart is not None:
        groups[TOTAL][TOLD_APART] = 100 * scores.told_apart.share
    for group, share in ((CHANGE, scores.changed_pairs), (STILL, scores.unchanged_pairs)):
        if share.pairs:
            groups[group][TOLD_APART] = 100 * share.share
    for measure in (TYPE, EXACT):
        if measure in scores.shares and scores.shares[measure].pairs:
            groups[TOTAL][measure] = groups[CHANGE][measure] = 100 * scores.shares[measure].share
    for kind, share in scores.exact_by_type.items():
        row = scores.confusion[kind]
        right = 100 * row.get(kind, 0) / max(1, sum(row.values()))
        groups[kind] = {TYPE: right, EXACT: 100 * share.share}
    return groups


def claimed_types(confusion: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
    """The columns of a confusion table: the true and the claimed types, UNRECOGNISED last."""
    names = {*confusion, *(name for row in confusion.values() for name in row)}
    return [name for name in (*TYPES, UNRECOGNISED) if name in names]


def _if_said(share: Share) -> str:
    """Percent right among the captions that say the fact; empty unless some leave it out."""
    stated = share.right + share.wrong
    return f"{100 * share.right / stated:.1f}" if stated and share.not_said else ""


def _percent(one: Interval) -> str:
    return f"{100 * one.share:.1f} | {100 * one.low:.1f} … {100 * one.high:.1f}"


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
