"""Shares of captions that are right about the facts of rendered pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cc_prep.records import FACT_TYPES
from cc_prep.synth.parsing import NEW, SEVERAL, TYPE, UNCHANGED
from cc_train.evaluation.captions.coco import CHANGE, STILL
from cc_train.evaluation.facts import FACTS, Verdict

TOLD_APART, EXACT = "told apart", "exact"
# In comparisons; × 100 like all other measures.
MEASURES = (TOLD_APART, TYPE, EXACT)
TITLES = {NEW: "new value"}
UNRECOGNISED = "not recognised"
Z = 1.959964  # of a 95 % interval


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
        if not self.pairs:
            return 0.0, 1.0
        n, p = self.pairs, self.share
        middle, half = p + Z**2 / (2 * n), Z * math.sqrt(p * (1 - p) / n + Z**2 / (4 * n**2))
        low, high = ((middle + sign * half) / (1 + Z**2 / n) for sign in (-1, 1))
        return max(0.0, low), min(1.0, high)

    def to_json(self) -> dict[str, Any]:
        """Counts, share and interval."""
        low, high = self.interval
        wrong = self.pairs - self.right - self.unsaid
        counts = {"right": self.right, "wrong": wrong, "not said": self.unsaid, "pairs": self.pairs}
        return {**counts, "share": self.share, "low": low, "high": high}


@dataclass(frozen=True)
class FactScores:
    """What captions of pairs with facts are right about.

    changed, unchanged: of the changed and of the unchanged pairs, how many captions say so; a
        caption whose type is not recognised says neither, and one that claims several types says
        that something changed.
    facts: by name of FACTS, over the changed pairs that have the fact. exact: over the changed
        pairs, by type. confusion: captions by true type and claimed type, SEVERAL or UNRECOGNISED.
    """

    changed: Share
    unchanged: Share
    facts: dict[str, Share]
    exact: dict[str, Share]
    confusion: dict[str, dict[str, int]]

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
        """The entry `facts` of scores.json."""
        shares = {**self.facts, EXACT: self.exact_total}
        apart = self.told_apart
        return {
            TOLD_APART: apart and {"share": apart[0], "low": apart[1], "high": apart[2]},
            "changed pairs": self.changed.to_json(),
            "unchanged pairs": self.unchanged.to_json(),
            "shares": {TITLES.get(name, name): share.to_json() for name, share in shares.items()},
            "exact by type": {kind: share.to_json() for kind, share in self.exact.items()},
            "confusion": self.confusion,
        }


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
    types = [kind for kind in FACT_TYPES if any(one.type == kind for one in listed)]
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
        _recall(changed, [SEVERAL, *(one for one in FACT_TYPES if one != UNCHANGED)]),
        _recall(unchanged, [UNCHANGED]),
        facts,
        exact,
        confusion,
    )


def _recall(verdicts: Sequence[Verdict], types: Sequence[str]) -> Share:
    """The share of captions that claim one of `types`, where all of them should."""
    claimed = [verdict.claimed for verdict in verdicts]
    return Share(sum(kind in types for kind in claimed), len(claimed), claimed.count(None))


def by_group(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """MEASURES, × 100, by group, from the entry `facts` of scores.json.

    Type and exact are over changed pairs, in the total as well. Raises KeyError and TypeError for
    other JSON.
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


def table(scores: FactScores, pairs: int) -> str:
    """The scores in Markdown. pairs: number of pairs evaluated, with or without facts."""
    content = scores.to_json()
    with_facts = scores.changed.pairs + scores.unchanged.pairs
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
    claimed = claimed_types(scores.confusion)
    lines += ["", f"| true type ↓, caption → | {' | '.join(claimed)} | exact, % | 95 % |"]
    lines.append("|---" * (len(claimed) + 3) + "|")
    for kind, row in scores.confusion.items():
        counts = (f"{row[name]:,}" if name in row else "" for name in claimed)
        exact = content["exact by type"].get(kind)
        lines.append(f"| {kind} | {' | '.join(counts)} | {_percent(exact) if exact else '|'} |")
    if with_facts < pairs:
        lines.append(f"\n{with_facts:,} of {pairs:,} pairs have facts.")
    return "\n".join(lines) + "\n"


def claimed_types(confusion: Mapping[str, Mapping[str, int]]) -> Sequence[str]:
    """The columns of a confusion table: the true and the claimed types, UNRECOGNISED last."""
    names = {*confusion, *(name for row in confusion.values() for name in row)}
    return [name for name in (*FACT_TYPES, SEVERAL, UNRECOGNISED) if name in names]


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
