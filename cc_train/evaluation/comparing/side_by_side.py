"""Rows side by side: their tables, the gain over the first one, and why they may not compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cc_prep.errors import UserError
from cc_train.evaluation import evaluation
from cc_train.evaluation.comparing import bootstrap
from cc_train.evaluation.comparing.scored_rows import MARKS, MEASURES, Row
from cc_train.evaluation.rendered import fact_scores


@dataclass(frozen=True)
class Table:
    """Rows of one group, best CIDEr last.

    Attributes:
        best: The row that leads, by measure.
    """

    group: str
    measures: list[str]
    rows: list[Row]
    best: dict[str, Row]

    def leads(self, row: Row, measure: str) -> bool:
        """Whether this very row leads; a published row may have the same name."""
        return self.best[measure] is row


@dataclass(frozen=True)
class Interval:
    """How much higher, × 100, `name` scores than `other` over the same pairs.

    Attributes:
        measure: `exact` or CIDEr.
        difference: The mean over the pairs.
        low, high: Its 95 % interval.
    """

    name: str
    other: str
    difference: float
    low: float
    high: float
    measure: str = "CIDEr"


def require_same(rows: Sequence[Row]) -> None:
    """Raises UserError for rows of ours whose scores are not comparable by their signatures."""
    different = _different(rows)
    if different:
        raise UserError(
            different[0],
            "Evaluate them in the same way, or show them side by side with --mixed",
        )


def _different(rows: Sequence[Row]) -> list[str]:
    """The evaluations whose signature differs from the first one's, in words."""
    ours = [row for row in rows if not row.sources]
    lines = []
    for row in ours:
        keys = _differences(ours[0], row)
        if keys and ours[0].signature is not None and row.signature is not None:
            one, other = ours[0].signature.parts, row.signature.parts
            what = ", ".join(f"{key} {other[key]} for {one[key]}" for key in keys)
            lines.append(f"{row.name} is not scored as {ours[0].name} is: {what}")
    return lines


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each group of our rows; without rows of ours, one for every group."""
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
    """The gains of each later row over the first, by the paired bootstrap.

    It resamples the pairs that both rows have, and the runs of a row that has several.

    A pair's own CIDEr depends on its references and on the document frequencies of the whole
    evaluation, so only rows over exactly the same pairs are compared, and none whose signature
    differs from the first one's. The same seed gives the same intervals.
    """
    listed = list(rows)
    exact = [
        (row.name, [run.exact for run in row.runs])
        for row in _scored_alike([row for row in listed if row.exact])
    ]
    cider = [
        (row.name, [run.items for run in row.runs])
        for row in _scored_alike([row for row in listed if row.items])
    ]
    return [
        *_intervals(exact, fact_scores.EXACT, np.random.default_rng(seed)),
        *_intervals(cider, "CIDEr", np.random.default_rng(seed)),
    ]


def _scored_alike(rows: Sequence[Row]) -> list[Row]:
    """The first row, and those whose signature agrees with its own."""
    return [row for row in rows if not _differences(rows[0], row)]


def _differences(first: Row, row: Row) -> list[str]:
    """The keys of the signatures in which two rows differ; published rows have none."""
    if first.signature is None or row.signature is None:
        return []
    return first.signature.differences(row.signature)


def _intervals(
    scored: Sequence[tuple[str, Sequence[Mapping[str, float]]]],
    measure: str,
    rng: np.random.Generator,
) -> list[Interval]:
    """Intervals of each later row against the first.

    Args:
        scored: For each row its name, and the scores by pair of each of its runs.
    """
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
    if any(_differences(ours[0], row) for row in ours):
        notes.append("gains are computed only between evaluations whose signatures agree")
    signatures = dict.fromkeys(row.signature.line for row in ours if row.signature is not None)
    notes += [f"signature: {line}" for line in signatures]
    several = [row for row in ours if row.members]
    notes += [
        f"{row.name}: mean ± standard deviation of {len(row.members)} runs" for row in several
    ]
    notes += [
        f"{row.name}: its runs have different signatures, of which its own has the common part"
        for row in several
        if len({one.signature.line for one in row.members if one.signature is not None}) > 1
    ]
    if any(row.exact for row in ours):
        notes.append("type and exact: share of the changed pairs; see docs/evaluation.md, Facts")
    notes += [f"judge: {line}" for line in dict.fromkeys(row.judge for row in ours if row.judge)]
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
        "captions of a change whose mask covers what they name, see docs/chain.md"
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
            f"{measure} gained": [asdict(gain) for gain in gains if gain.measure == measure]
            for measure in ("CIDEr", *sorted({gain.measure for gain in gains} - {"CIDEr"}))
        },
        "notes": list(notes),
    }


def _scores(row: Row, table: Table) -> Mapping[str, Any]:
    pairs = {"pairs": row.pairs[table.group]} if table.group in row.pairs else {}
    runs = {"runs": len(row.members), "spread": row.spread.get(table.group, {})}
    return {**pairs, **row.groups[table.group], **(runs if row.members else {})}
