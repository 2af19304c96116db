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
from cc_train.evaluation.evaluation_files import (
    Agreement,
    Figure,
    Interval,
    JudgeCheck,
    Judged,
    JudgeError,
    Record,
)
from cc_train.evaluation.judging.asking import Asked
from cc_train.evaluation.judging.forms import REVERSAL, Counts
from cc_train.evaluation.judging.protocols import HEADLINES, OURS, RATED, Protocol

ORDER = (
    *("precision", "recall", "F1", "correctness", "completeness", "hallucination", "relevance"),
    *("fluency", "aggregation", "overall", "specificity", "reversibility"),
)
Errors = dict[str, dict[str, JudgeError]]  # by form and kind
FEW = 3  # pairs that a note names
NOT_MEASURED = "The judge's own error is not measured: see cc-train judge-check."


@dataclass(frozen=True)
class JudgedScores:
    """What a judge says of the captions of an evaluation.

    Attributes:
        scores: Of all of them together. Pairs are named by their official ids.
        pairs: What was said of each pair, for items.jsonl.
        signature: The entry `judge` of a signature.
    """

    scores: Judged
    pairs: Mapping[str, Mapping[str, Any]]
    signature: str

    def table(self) -> str:
        """The scores in Markdown."""
        return table(self.scores)


def count(
    protocol: Protocol,
    record: Record,
    asked: Sequence[Asked],
    groups: Mapping[str, set[str]],
    check: Errors | None = None,
) -> JudgedScores:
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
    broken = [one for one in asked if one.broken]
    judged = Judged(
        **record.to_json(),
        headline=headline,
        groups={group: values for group, values in figures.items() if values},
        agreement=agreement(asked),
        answers=len(asked),
        broken=dict(Counter(str(one.broken) for one in broken)),
        broken_pairs=sorted({one.subject.id for one in broken}),
        unjudged=sorted(id for id, of_pair in counts.items() if not of_pair),
        check=check,
    )
    return JudgedScores(judged, pairs, signed(record))


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


def agreement(asked: Sequence[Asked]) -> Agreement | None:
    """How many of the questions with two readable answers were answered alike; None if none has."""
    both: dict[tuple[str, str], list[Asked]] = {}
    for one in asked:
        if one.broken is None:
            both.setdefault((one.subject.id, one.form.name), []).append(one)
    same = [one.said == other.said for one, other in (v for v in both.values() if len(v) == 2)]
    if not same:
        return None
    return Agreement.of(sum(same), len(same), questions=len(same))


def _figure(name: str, counts: Mapping[str, tuple[float, float]], protocol: Protocol) -> Figure:
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
    return Figure(
        value=scale * value,
        low=scale * float(low),
        high=scale * float(high),
        pairs=len(counts),
    )


def _ratio(over: Any, under: Any) -> Any:
    return np.divide(over, under, out=np.zeros_like(over), where=under > 0)


def signed(record: Record) -> str:
    """A judge and how it was asked, as a signature has it: no `|` and no `:` in it.

    Whether it was also asked about swapped pairs makes no other score of it incomparable.
    """
    prompts = {form: text for form, text in record.prompts.items() if form != REVERSAL}
    content = json.dumps({**record.to_json(), "prompts": prompts}, sort_keys=True)
    digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()
    model = re.sub(r"[^\w.+-]+", "-", record.model)
    return f"{record.protocol},{model},words={record.words},{digest[:12]}"


def table(judged: Judged) -> str:
    """The scores in Markdown."""
    groups = judged.groups
    names = [name for name in ORDER if any(name in figures for figures in groups.values())]
    title = f"judged by {judged.model}, {judged.protocol}"
    lines = [f"| {title} | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for group, figures in groups.items():
        cells = (_cell(figures[name]) if name in figures else "" for name in names)
        lines.append(f"| {group} | {' | '.join(cells)} |")
    lines += [f"\n{note}" for note in notes(judged)]
    return "\n".join(lines) + "\n"


def _cell(figure: Figure) -> str:
    return f"{figure.value:.1f} ({figure.low:.1f} … {figure.high:.1f})"


def notes(judged: Judged) -> list[str]:
    """What to know about judged scores: agreement, broken answers, the judge's own error."""
    lines = notes_on_answers(judged, judged.broken_pairs)
    if judged.unjudged:
        without = counted(len(judged.unjudged), "pair")
        lines.append(f"No answer about {without} can be read: the judged scores leave them out.")
    return [*lines, *notes_on_words(judged), *errors_of(judged)]


def notes_on_answers(judged: Judged | JudgeCheck, ids: Sequence[str] = ()) -> list[str]:
    """How often a judge agrees with itself, and how many answers cannot be read.

    Args:
        ids: Some pairs that have such an answer.
    """
    lines = []
    if judged.agreement:
        lines.append(
            f"Of {counted(judged.agreement.questions, 'question')} asked in both orders, the judge "
            f"answered {_percent(judged.agreement)} alike."
        )
    if judged.broken:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in judged.broken.items())
        such = ", ".join(ids[:FEW])
        lines.append(
            f"{sum(judged.broken.values()):,} of {judged.answers:,} answers cannot be read and "
            f"count for nothing: {reasons}" + (f", such as of {such}." if such else ".")
        )
    return lines


def notes_on_words(record: Record) -> list[str]:
    """A warning where the questions of a benchmark were not asked in its own words."""
    if record.words == "official" or record.protocol.startswith(f"{OURS}@"):
        return []
    return [
        f"The judge was not asked in the official words of {record.protocol}: compare with "
        "figures of the same judge and the same words alone."
    ]


def errors_of(judged: Judged) -> list[str]:
    """The judge's measured error, a line for each form of question."""
    if not judged.check:
        return [NOT_MEASURED]
    return [
        f"The judge's error on captions of known truth ({form}): "
        + ", ".join(f"{kind} {_percent(one)}" for kind, one in kinds.items() if one.captions)
        + "."
        for form, kinds in judged.check.items()
        if any(one.captions for one in kinds.values())
    ]


def _percent(one: Interval) -> str:
    return f"{100 * one.share:.1f} % ({100 * one.low:.1f} … {100 * one.high:.1f})"


def _plain(said: Any) -> Any:
    """A reading as JSON."""
    if isinstance(said, tuple):
        return [_plain(one) for one in said]
    return sorted(said) if isinstance(said, frozenset) else said
