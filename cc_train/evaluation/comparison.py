"""Evaluations side by side, with published figures as extra rows: `cc-train compare`."""

from __future__ import annotations

import itertools
import json
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
from cc_train.evaluation import evaluation, fact_scores, published
from cc_train.evaluation.captions import scorer

REMEDY = "Give runs, or folders of cc-train evaluate"
RESAMPLES = 2000
MEASURES = (*fact_scores.MEASURES, *scorer.ORDER)
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

    def remarks(self, group: str) -> str:
        """In words why a published row may mislead."""
        details = self.details.get(group, {})
        return " ".join(str(details[key]) for key in ("uncertain", "note") if key in details)


@dataclass(frozen=True)
class Table:
    """Rows of one group, best CIDEr last. best: the row that leads in each measure."""

    group: str
    measures: list[str]
    rows: list[Row]
    best: dict[str, str]


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
            str(group): {name: float(values[name]) for name in scorer.ORDER if name in values}
            for group, values in scores["groups"].items()
        }
        for group, shares in _facts(scores).items():
            if group in groups:
                groups[group] = {**shares, **groups[group]}
        pairs = {str(group): int(values["pairs"]) for group, values in scores["groups"].items()}
        conventions = str(scores["conventions"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{file}: no scores of cc-train evaluate", REMEDY) from None
    folder = file.parent if file.parent.name != evaluation.FOLDER else file.parent.parent
    folder = Path(os.path.abspath(folder))
    name = folder.name.removesuffix(".evaluation")
    items, exact = _items(file.parent / "items.jsonl")
    return Row(name, groups, pairs, items, conventions, folder.parts, exact)


def _facts(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    return fact_scores.by_group(scores["facts"]) if scores.get("facts") else {}


def _items(place: Path) -> tuple[dict[str, float], dict[str, float]]:
    """CIDEr of each pair, and of each changed pair with facts whether it is exact, 100 or 0."""
    if not place.exists():
        return {}, {}
    try:
        lines = [json.loads(line) for line in place.read_text(encoding="utf-8").splitlines()]
        rows = {str(line.get("image_id") or line["id"]): line for line in lines}
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


def published_rows(dataset: str) -> list[Row]:
    """The published figures of a data set's test split, a row a system.

    Raises UserError if there are none.
    """
    figures_file = published.read()
    figures = [f for f in figures_file.figures if (f.dataset, f.split) == (dataset, "test")]
    if not figures:
        known = ", ".join(sorted(figures_file.datasets))
        raise UserError(f"--dataset {dataset}: no published figures", f"Known: {known}")
    rows: dict[str, Row] = {}
    for figure in figures:
        row = rows.setdefault(figure.system, Row(figure.system, {}))
        row.groups[figure.group] = figure.merged
        row.sources[figure.group] = _printed(figure.source, figure.table)
        row.marks[figure.group] = _marks(figure, figures_file)
        row.details[figure.group] = _details(figure, figures_file)
    return list(rows.values())


def _printed(source: str, table: str) -> str:
    return f"{source}, table {table}" if table[-1].isdigit() else f"{source}, {table}"


def _marks(figure: published.Figure, figures_file: published.Published) -> tuple[str, ...]:
    """What the table shows of a published row besides its scores; see MARKS."""
    system = figures_file.systems[figure.system]
    marks = []
    if system.llm or system.llm is None:
        marks.append("LLM" if system.llm else "LLM?")
    if figure.changes is not None:
        marks.append(figure.changes)
    if figure.reproduced is not None:
        marks.append(
            {True: "reproduced", False: "not reached", None: "by others"}[figure.reproduced.reached]
        )
    if system.cider != "official":
        marks.append("CIDEr-D" if system.cider == "CIDEr-D" else "CIDEr?")
    if figure.uncertain:
        marks.append("uncertain")
    if figure.disputed:
        marks.append("disputed")
    return tuple(marks)


def _details(figure: published.Figure, figures_file: published.Published) -> dict[str, Any]:
    """All that is known of a published row besides its scores, as JSON."""
    system = figures_file.systems[figure.system]
    facts = figure.model_dump(
        mode="json",
        include={"elsewhere", "reproduced", "uncertain", "note"},
        exclude_defaults=True,
    )
    return {
        "aliases": list(system.aliases),
        "llm": system.llm,
        "CIDEr kind": system.cider,
        "changes": figure.changes or figures_file.datasets[figure.dataset].changes,
        **facts,
    }


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table a group that one of our rows has."""
    names = evaluation.ranked({group for row in rows if not row.sources for group in row.groups})
    tables = []
    for group in names:
        ranked = [row for row in rows if row.groups.get(group)]
        ranked.sort(key=lambda row: row.groups[group].get("CIDEr", 0.0))
        measures = [m for m in MEASURES if any(m in row.groups[group] for row in ranked)]
        best = {
            m: max(
                (row for row in ranked if m in row.groups[group]), key=lambda r: r.groups[group][m]
            ).name
            for m in measures
        }
        tables.append(Table(group, measures, ranked, best))
    return tables


def intervals(rows: Iterable[Row], seed: int = 0) -> list[Interval]:
    """Each later row against the first, by resampling the pairs that both have (paired bootstrap).

    A pair's own CIDEr depends on the document frequencies of the whole evaluation, so only rows
    over exactly the same pairs are compared. The same seed gives the same intervals.
    """
    listed = list(rows)
    exact = [(row.name, row.exact) for row in listed if row.exact]
    cider = [(row.name, row.items) for row in listed if row.items]
    return [
        *_intervals(exact, fact_scores.EXACT, np.random.default_rng(seed)),
        *_intervals(cider, "CIDEr", np.random.default_rng(seed)),
    ]


def _intervals(
    scored: Sequence[tuple[str, Mapping[str, float]]], measure: str, rng: np.random.Generator
) -> list[Interval]:
    """Of the scores of pairs by name of their row, each later one against the first."""
    intervals = []
    for name, scores in scored[1:]:
        other, first = scored[0]
        if scores.keys() == first.keys():
            gains = np.array([scores[id] - first[id] for id in sorted(scores)])
            draws = rng.integers(len(gains), size=(RESAMPLES, len(gains)))
            low, high = np.percentile(gains[draws].mean(axis=1), (2.5, 97.5))
            difference = float(gains.mean())
            intervals.append(Interval(name, other, difference, float(low), float(high), measure))
    return intervals


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
    if any(row.exact for row in ours):
        notes.append("type and exact: share of the changed pairs; see docs/captioner.md, Facts")
    if any(row.sources for row in rows):
        notes.append("published rows: as their papers give them, of the official test split")
        used = {mark for row in rows for marks in row.marks.values() for mark in marks}
        notes += [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in used]
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
    return {**pairs, **row.groups[table.group]}
