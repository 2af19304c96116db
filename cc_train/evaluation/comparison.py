"""Evaluations side by side, with published figures as extra rows: `cc-train compare`."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.synth.parsing import UNCHANGED
from cc_train.evaluation import evaluation, fact_scores, signature
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.comparing import bootstrap
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.signature import Signature

REMEDY = "Give runs, or folders of cc-train evaluate"
FAITHFUL = "faithful"
OF_MASKS = (segmentation.MIOU, segmentation.MIOU_CHANGE, "F1")
MEASURES = (*fact_scores.MEASURES, *metrics.ORDER, *OF_MASKS, FAITHFUL)
MARKS = {
    "LLM": "a large language model writes the captions",
    "LLM?": "not known whether one does",
    "single": "single-change protocol",
    "multi": "multi-change protocol",
    "unknown": "protocol not known",
    "reproduced": "others reached the scores",
    "not reached": "others tried and did not reach the scores",
    "by others": "measured by others than the authors",
    "CIDEr-D": "the paper calls its CIDEr so; its document frequencies are not known",
    "CIDEr?": "by a scorer that is not known",
    "uncertain": "the scores are in doubt",
    "disputed": "papers print different scores",
}


@dataclass(frozen=True)
class Row:
    """A system's scores by group and measure, × 100. pairs: by group.

    items: CIDEr of each pair by its official id, where it is known. exact: 100 or 0 of each changed
        pair whose facts are known: whether the caption is exactly right.
    folder: parts of the absolute path of an evaluated run; only its end is ever shown.
    sources, marks, details: of published scores by group, where they stand, what the table shows
        of them (see MARKS), and all that is known of them as JSON.
    masks: in words, over which masks their scores are; empty where there are none.
    signature: None of published scores, and of evaluations from before there were signatures.
    members: the runs of one system whose mean this row is. spread: their standard deviation by
        group and measure.
    """

    name: str
    groups: dict[str, dict[str, float]]
    pairs: dict[str, int] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    conventions: str = ""
    folder: tuple[str, ...] = ()
    exact: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    marks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    signature: Signature | None = None
    members: tuple[Row, ...] = ()
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    masks: str = ""

    @property
    def runs(self) -> tuple[Row, ...]:
        """The runs that the row is of."""
        return self.members or (self,)

    def remarks(self, group: str) -> str:
        """In words why a published row may mislead."""
        details = self.details.get(group, {})
        return " ".join(str(details[key]) for key in ("uncertain", "note") if key in details)


@dataclass(frozen=True)
class Table:
    """Rows of one group, best CIDEr last. best: the one of `rows` that leads in each measure."""

    group: str
    measures: list[str]
    rows: list[Row]
    best: dict[str, Row]

    def leads(self, row: Row, measure: str) -> bool:
        """Whether this one of `rows` leads; a published row may have the name of one of ours."""
        return self.best[measure] is row


@dataclass(frozen=True)
class Interval:
    """How much more of a measure, × 100, `name` has than `other` over the same pairs.

    measure: `exact` or CIDEr. difference: the mean over the pairs. low, high: its 95 % interval.
    """

    name: str
    other: str
    difference: float
    low: float
    high: float
    measure: str = "CIDEr"


def read(place: str) -> Row:
    """The row of a run, of an evaluation's folder, or of a scores.json.

    Raises UserError if no scores are there, or they are damaged.
    """
    path = Path(place)
    evaluated = Path(evaluation.default_folder(place))
    candidates = [path] if path.is_file() else [evaluated / "scores.json"]
    candidates += [path / "scores.json"]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        raise UserError(f"{place}: no scores.json in it", "Evaluate it first: cc-train evaluate")
    try:
        scores = storage.read_json(str(file))
        groups = {
            str(group): {name: float(values[name]) for name in metrics.ORDER if name in values}
            for group, values in scores["groups"].items()
        }
        for group, shares in _facts(scores).items():
            if group in groups:
                groups[group] = {**shares, **groups[group]}
        if evaluation.TOTAL in groups:
            groups[evaluation.TOTAL] |= _of_masks(scores)
        masks = _masks(scores)
        pairs = {str(group): int(values["pairs"]) for group, values in scores["groups"].items()}
        conventions = str(scores["conventions"])
        line = scores.get("signature")
        signed = None if line is None else signature.parse(line)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file}: no scores of cc-train evaluate", REMEDY) from None
    folder = file.parent if file.parent.name != evaluation.FOLDER else file.parent.parent
    folder = Path(os.path.abspath(folder))
    name = folder.name.removesuffix(".evaluation")
    items, exact = _items(file.parent / "items.jsonl")
    return Row(
        name,
        groups,
        pairs,
        items,
        conventions,
        folder.parts,
        exact,
        signature=signed,
        masks=masks,
    )


def _facts(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return fact_scores.by_group(scores["facts"]) if scores.get("facts") else {}


def _of_masks(scores: Mapping[str, Any]) -> dict[str, float]:
    """The measures of predicted masks, as far as an evaluation has them."""
    figures, faithful = scores.get("masks") or {}, scores.get("faithfulness")
    measures = {name: float(figures[name]) for name in OF_MASKS if figures.get(name) is not None}
    if faithful and faithful["predicted masks"]["pairs"]:
        measures[FAITHFUL] = 100 * float(faithful["predicted masks"]["share"])
    return measures


def _masks(scores: Mapping[str, Any]) -> str:
    """How many masks an evaluation has, and of which classes."""
    figures = scores.get("masks")
    return f"{figures['pairs']:,} of {', '.join(figures['classes'])}" if figures else ""


def _items(place: Path) -> tuple[dict[str, float], dict[str, float]]:
    """CIDEr of each pair, and of each changed pair with facts whether it is exact, 100 or 0."""
    if not place.exists():
        return {}, {}
    try:
        items = storage.read_json_lines(str(place))
        rows = {str(item.get("image_id") or item["id"]): item for item in items}
        exact = {
            id: 100.0 * bool(row["exact"])
            for id, row in rows.items()
            if row.get("facts") and row["facts"]["type"] != UNCHANGED
        }
        return {id: float(row["scores"]["CIDEr"]) for id, row in rows.items()}, exact
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{place}: damaged", "Evaluate again: cc-train evaluate") from None


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The rows; those of one name are called by the end of their path that tells them apart.

    Where no path does, because a run was given twice, they are numbered.
    """
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    counts: Counter[str] = Counter()
    renamed = []
    for row in rows:
        name = _told_apart(row, by_name[row.name])
        counts[name] += 1
        renamed.append(replace(row, name=f"{name} ({counts[name]})" if counts[name] > 1 else name))
    return renamed


def _told_apart(row: Row, same_name: Sequence[Row]) -> str:
    """The row's name with as many folders before it as tell it from the others."""
    parents = row.folder[:-1]
    others = {other.folder[:-1] for other in same_name} - {parents}
    if not others:
        return row.name
    depth = next(n for n in itertools.count(1) if parents[-n:] not in {o[-n:] for o in others})
    return "/".join((*parents[-depth:], row.name))


def require_same(rows: Sequence[Row]) -> None:
    """Raises UserError for rows of ours whose scores are not comparable by their signatures."""
    different = _different(rows)
    if different:
        raise UserError(
            different[0],
            "Evaluate them in the same way, or show them side by side with --mixed",
        )


def _different(rows: Sequence[Row]) -> list[str]:
    """In words which evaluations have another signature than the first that has one."""
    ours = [row for row in rows if not row.sources]
    first = next((row for row in ours if row.signature is not None), None)
    if first is None or first.signature is None:
        return []
    lines = []
    for row in ours:
        if row.signature is None:
            lines.append(f"{row.name} has no signature, unlike {first.name}: older code scored it")
            continue
        keys = first.signature.differences(row.signature)
        if keys:
            what = ", ".join(
                f"{key} {row.signature.parts[key]} for {first.signature.parts[key]}" for key in keys
            )
            lines.append(f"{row.name} is not scored as {first.name} is: {what}")
    return lines


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table a group that one of our rows has; without rows of ours, a table a group."""
    ours = [row for row in rows if not row.sources] or rows
    names = evaluation.ranked({group for row in ours for group in row.groups})
    tables = []
    for group in names:
        ranked = [row for row in rows if row.groups.get(group)]
        ranked.sort(key=lambda row: row.groups[group].get("CIDEr", 0.0))
        measures = [m for m in MEASURES if any(m in row.groups[group] for row in ranked)]
        best = {
            m: max(
                (row for row in ranked if m in row.groups[group]), key=lambda r: r.groups[group][m]
            )
            for m in measures
        }
        tables.append(Table(group, measures, ranked, best))
    return tables


def intervals(rows: Iterable[Row], seed: int = 0) -> list[Interval]:
    """Each later row against the first, by resampling the pairs that both have (paired bootstrap),
    and the runs where a row is of several.

    A pair's own CIDEr depends on the document frequencies of the whole evaluation, so only rows
    over exactly the same pairs are compared. The same seed gives the same intervals.
    """
    listed = list(rows)
    exact = [(row.name, [run.exact for run in row.runs]) for row in listed if row.exact]
    cider = [(row.name, [run.items for run in row.runs]) for row in listed if row.items]
    return [
        *_intervals(exact, fact_scores.EXACT, np.random.default_rng(seed)),
        *_intervals(cider, "CIDEr", np.random.default_rng(seed)),
    ]


def _intervals(
    scored: Sequence[tuple[str, Sequence[Mapping[str, float]]]],
    measure: str,
    rng: np.random.Generator,
) -> list[Interval]:
    """Of the scores of pairs of each run by name of its row, each later row against the first."""
    if not scored:
        return []
    (other, first), *later = scored
    return [
        Interval(name, other, *bootstrap.gain(first, runs, rng), measure)
        for name, runs in later
        if all(run.keys() == first[0].keys() for run in (*first, *runs))
    ]


def notes(rows: Sequence[Row]) -> list[str]:
    """Why rows may not be comparable."""
    ours = [row for row in rows if not row.sources]
    notes = []
    for group in evaluation.ranked({group for row in ours for group in row.pairs}):
        counts = {row.name: row.pairs[group] for row in ours if group in row.pairs}
        if len(set(counts.values())) > 1:
            per_row = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            notes.append(f"{group}: not over the same number of pairs ({per_row})")
    scored = [row for row in ours if row.items]
    others = [row.name for row in scored if row.items.keys() != scored[0].items.keys()]
    if others:
        notes.append(f"not over the same pairs as {scored[0].name}: {', '.join(others)}")
    if len({row.conventions for row in ours}) > 1:
        notes.append("scored by different conventions; see each scores.json")
    notes += [f"different signatures: {line}" for line in _different(rows)]
    signatures = dict.fromkeys(row.signature.line for row in ours if row.signature is not None)
    notes += [f"signature: {line}" for line in signatures]
    several = [row for row in ours if row.members]
    notes += [
        f"{row.name}: mean ± standard deviation of {len(row.members)} runs" for row in several
    ]
    if any(row.exact for row in ours):
        notes.append("type and exact: share of the changed pairs; see docs/captioner.md, Facts")
    notes += _on_masks(ours)
    if any(row.sources for row in rows):
        notes.append("published rows: as their papers give them, of the official test split")
        used = {mark for row in rows for marks in row.marks.values() for mark in marks}
        notes += [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in used]
    return notes


def _on_masks(rows: Sequence[Row]) -> list[str]:
    masked = {row.name: row.masks for row in rows if row.masks}
    if not masked:
        return []
    notes = [
        "mIoU, mIoU-change and F1: of predicted masks, see docs/masks.md; faithful: share of the "
        "captions of a change whose mask lies on what they name, see docs/chain.md"
    ]
    if len({*masked.values()}) > 1:
        listed = "; ".join(f"{name}: {masks}" for name, masks in masked.items())
        notes.append(f"not over the same masks ({listed})")
    return notes


def to_json(tables: Sequence[Table], gains: Sequence[Interval], notes: Sequence[str]) -> Any:
    """All of it as JSON."""
    return {
        "groups": {
            table.group: [
                {
                    "system": row.name,
                    "source": row.sources.get(table.group),
                    **_scores(row, table),
                    **row.details.get(table.group, {}),
                }
                for row in table.rows
            ]
            for table in tables
        },
        **{
            f"{measure} gained": [gain.__dict__ for gain in gains if gain.measure == measure]
            for measure in ("CIDEr", *sorted({gain.measure for gain in gains} - {"CIDEr"}))
        },
        "notes": list(notes),
    }


def _scores(row: Row, table: Table) -> Mapping[str, Any]:
    pairs = {"pairs": row.pairs[table.group]} if table.group in row.pairs else {}
    runs = {"runs": len(row.members), "spread": row.spread.get(table.group, {})}
    return {**pairs, **row.groups[table.group], **(runs if row.members else {})}
