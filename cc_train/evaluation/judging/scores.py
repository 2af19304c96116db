"""What a judge says of captions, as figures with intervals, and what it failed to say."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cc_prep.words import counted
from cc_train.evaluation.captions.coco import scene_of
from cc_train.evaluation.comparing.bootstrap import PERCENTILES, RESAMPLES
from cc_train.evaluation.judging.asking import Asked
from cc_train.evaluation.judging.forms import REVERSAL, Counts
from cc_train.evaluation.judging.protocols import HEADLINES, OURS, RATED, Protocol
from cc_train.evaluation.rendered.fact_scores import wilson

ORDER = (
    *("precision", "recall", "F1", "correctness", "completeness", "hallucination", "relevance"),
    *("fluency", "aggregation", "overall", "specificity", "reversibility"),
)
FEW = 3  # pairs that a note names
NOT_MEASURED = "The judge's own error is not measured: see cc-train judge-check."


@dataclass(frozen=True)
class Judged:
    """The judged scores of an evaluation.

    Attributes:
        record: What decides the answers: judge, protocol, texts, orders.
        groups: Figures by group and measure. Pairs are named by their official ids.
        headline: The measure that comparisons show.
        agreement: Of the questions that were asked in both orders and whose answers can both be
            read, how many were answered alike.
        broken: Answers that cannot be read, by reason.
        broken_pairs: Ids of the pairs that have one.
        unjudged: Ids of the pairs of which no answer can be read.
        answers: Number of answers.
        pairs: What was said of each pair, for items.jsonl.
        check: The judge's error on captions of known truth, by form and kind; None if not given.
    """

    record: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Mapping[str, float]]]
    headline: str
    agreement: Mapping[str, float] | None
    broken: Mapping[str, int]
    broken_pairs: Sequence[str]
    unjudged: Sequence[str]
    answers: int
    pairs: Mapping[str, Mapping[str, Any]]
    check: Mapping[str, Any] | None = None

    @property
    def signature(self) -> str:
        """The entry `judge` of a signature."""
        return signed(self.record)

    def to_json(self) -> dict[str, Any]:
        """The entry `judged` of scores.json."""
        return {
            **self.record,
            "headline": self.headline,
            "groups": self.groups,
            "agreement": self.agreement,
            "answers": self.answers,
            "broken": dict(self.broken),
            "broken pairs": list(self.broken_pairs),
            "unjudged": list(self.unjudged),
            "check": self.check,
        }

    def table(self) -> str:
        """The scores in Markdown."""
        return table(self.to_json())


def count(
    protocol: Protocol,
    record: Mapping[str, Any],
    asked: Sequence[Asked],
    groups: Mapping[str, set[str]],
    check: Mapping[str, Any] | None = None,
) -> Judged:
    """The scores of what a judge said.

    A pair counts as the mean of its askings that can be read. One without such an answer counts
    nowhere but in `unjudged`.

    Args:
        groups: Ids of the pairs by group, as the subjects have them.
    """
    by_question: dict[tuple[str, str], list[Asked]] = {}
    for one in asked:
        by_question.setdefault((one.subject.id, one.form.name), []).append(one)
    counts: dict[str, dict[str, tuple[float, float]]] = {}
    pairs: dict[str, dict[str, Any]] = {}
    for (id, form), askings in by_question.items():
        read = [one for one in askings if one.broken is None]
        pairs.setdefault(id, {})[form] = [
            {"broken": one.broken} if one.broken else {"said": _plain(one.said)} for one in askings
        ]
        mean = mean_counts([one.form.counts(one.said, one.subject) for one in read])
        counts.setdefault(id, {}).update(mean)
    figures = {
        group: {
            name: _figure(
                name,
                {id: counts[id][name] for id in sorted(ids) if name in counts.get(id, {})},
                protocol,
            )
            for name in ORDER
            if any(name in counts[id] for id in ids if id in counts)
        }
        for group, ids in groups.items()
    }
    total = next(iter(figures.values()))
    headline = next((name for name in HEADLINES[protocol.name] if name in total), "specificity")
    return Judged(
        record,
        {group: values for group, values in figures.items() if values},
        headline,
        agreement(asked),
        dict(Counter(one.broken for one in asked if one.broken)),
        sorted({one.subject.id for one in asked if one.broken}),
        sorted(id for id, of_pair in counts.items() if not of_pair),
        len(asked),
        pairs,
        check,
    )


def mean_counts(listed: Sequence[Counts]) -> dict[str, tuple[float, float]]:
    """The counts of a pair over its askings."""
    if not listed:
        return {}
    return {
        name: (
            sum(one[name][0] for one in listed) / len(listed),
            sum(one[name][1] for one in listed) / len(listed),
        )
        for name in listed[0]
    }


def agreement(asked: Sequence[Asked]) -> dict[str, float] | None:
    """How many of the questions with two readable answers were answered alike; None if none has."""
    both: dict[tuple[str, str], list[Asked]] = {}
    for one in asked:
        if one.broken is None:
            both.setdefault((one.subject.id, one.form.name), []).append(one)
    same = [one.said == other.said for one, other in (v for v in both.values() if len(v) == 2)]
    if not same:
        return None
    share = sum(same) / len(same)
    low, high = wilson(share, len(same))
    return {"questions": len(same), "share": share, "low": low, "high": high}


def _figure(
    name: str, counts: Mapping[str, tuple[float, float]], protocol: Protocol
) -> dict[str, float]:
    """A measure over pairs, with the 95 % interval of a bootstrap over their scenes (see
    `comparing.bootstrap`); × 100 if a share.

    It is 0 where nothing is to be divided by, such as the precision of captions that claim nothing.

    Args:
        counts: By the ids of pairs.
    """
    scale = 1.0 if name in RATED.get(protocol.name, ()) else 100.0
    by_scene: dict[str, np.ndarray] = {}
    for id, pair in counts.items():
        by_scene[scene_of(id)] = by_scene.get(scene_of(id), np.zeros(2)) + pair
    over, under = np.array(list(by_scene.values())).T
    rng, scenes = np.random.default_rng(0), len(over)
    drawn = [rng.integers(scenes, size=scenes) for _ in range(RESAMPLES)]
    sums = np.array([(over[draw].sum(), under[draw].sum()) for draw in drawn])
    low, high = np.percentile(_ratio(*sums.T), PERCENTILES)
    value = float(_ratio(over.sum(), under.sum()))
    return {"value": scale * value, "low": scale * low, "high": scale * high, "pairs": len(counts)}


def _ratio(over: Any, under: Any) -> Any:
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def signed(record: Mapping[str, Any]) -> str:
    """A judge and how it was asked, as a signature has it: no `|` and no `:` in it.

    Whether it was also asked about swapped pairs makes no other score of it incomparable.
    """
    prompts = {form: text for form, text in record["prompts"].items() if form != REVERSAL}
    content = json.dumps({**record, "prompts": prompts}, sort_keys=True)
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    model = re.sub(r"[^\w.+-]+", "-", str(record["model"]))
    return f"{record['protocol']},{model},words={record['words']},{digest[:12]}"


def table(judged: Mapping[str, Any]) -> str:
    """The entry `judged` of scores.json in Markdown."""
    groups = judged["groups"]
    names = [name for name in ORDER if any(name in figures for figures in groups.values())]
    title = f"judged by {judged['model']}, {judged['protocol']}"
    lines = [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for group, figures in groups.items():
        cells = (_cell(figures[name]) if name in figures else "" for name in names)
        lines.append(f"| {group} | {' | '.join(cells)} |")
    lines += [f"\n{note}" for note in notes(judged)]
    return "\n".join(lines) + "\n"


def _cell(figure: Mapping[str, float]) -> str:
    return f"{figure['value']:.1f} ({figure['low']:.1f} … {figure['high']:.1f})"


def notes(judged: Mapping[str, Any], with_errors: bool = True) -> list[str]:
    """What to know about judged scores: agreement, broken answers, the judge's own error."""
    lines = []
    agreed = judged["agreement"]
    if agreed:
        lines.append(
            f"Of {counted(int(agreed['questions']), 'question')} asked in both orders, the judge "
            f"answered {_percent(agreed)} alike."
        )
    broken = judged["broken"]
    if broken:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in broken.items())
        ids = ", ".join(judged["broken pairs"][:FEW])
        lines.append(
            f"{sum(broken.values()):,} of {judged['answers']:,} answers cannot be read and count "
            f"for nothing: {reasons}" + (f", such as of {ids}." if ids else ".")
        )
    if judged["unjudged"]:
        without = counted(len(judged["unjudged"]), "pair")
        lines.append(f"No answer about {without} can be read: the judged scores leave them out.")
    if judged["words"] != "official" and not judged["protocol"].startswith(f"{OURS}@"):
        lines.append(
            f"The judge was not asked in the official words of {judged['protocol']}: compare with "
            "figures of the same judge and the same words alone."
        )
    return [*lines, *errors_of(judged)] if with_errors else lines


def errors_of(judged: Mapping[str, Any]) -> list[str]:
    """The judge's measured error, a line for each form of question."""
    check = judged.get("check")
    if not check:
        return [NOT_MEASURED]
    return [
        f"The judge's error on captions of known truth ({form}): "
        + ", ".join(f"{kind} {_percent(one)}" for kind, one in kinds.items() if one["captions"])
        + "."
        for form, kinds in check.items()
        if any(one["captions"] for one in kinds.values())
    ]


def _percent(share: Mapping[str, float]) -> str:
    low, high = 100 * share["low"], 100 * share["high"]
    return f"{100 * share['share']:.1f} % ({low:.1f} … {high:.1f})"


def _plain(said: Any) -> Any:
    """A reading as JSON."""
    if isinstance(said, tuple):
        return [_plain(one) for one in said]
    return sorted(said) if isinstance(said, frozenset) else said
