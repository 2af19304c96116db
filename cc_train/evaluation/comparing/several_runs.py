"""A row of several runs of one system, such as those of several seeds: `NAME=RUN,RUN,…`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from cc_prep.errors import UserError
from cc_train.evaluation import signature
from cc_train.evaluation.comparing import scored_rows, side_by_side
from cc_train.evaluation.comparing.scored_rows import Row


def read(path: str) -> Row:
    """The row of a run, see `scored_rows.read`, or the mean of the runs of `NAME=RUN,RUN,…`.

    Raises:
        UserError: For a missing run, and for runs that are not scored in the same way.
    """
    name, equals, listed = path.partition("=")
    if not equals or Path(path).exists():
        return scored_rows.read(path)
    runs = [part for part in listed.split(",") if part]
    if not name or not runs:
        raise UserError(f"{path}: no runs", "Give NAME=RUN,RUN,…, or RUN alone")
    return mean(name, [scored_rows.read(run) for run in runs])


def mean(name: str, rows: Sequence[Row]) -> Row:
    """The mean of the runs of one system, with their standard deviation. Raises UserError.

    Its signature has what the runs' signatures have in common; without any it has none.
    """
    side_by_side.require_same(scored_rows.distinct(rows))
    first = rows[0]
    other = next((row for row in rows if row.items.keys() != first.items.keys()), None)
    if other is not None:
        raise UserError(
            f"{name}: {other.name} is not over the same pairs as {first.name}",
            "Evaluate all runs of a system on the same shards",
        )
    other = next((row for row in rows if row.exact.keys() != first.exact.keys()), None)
    if other is not None:
        raise UserError(
            f"{name}: {first.name} and {other.name} were not both scored with the facts of the "
            "same pairs",
            "Evaluate both again with the same --facts, or both without",
        )
    signed = [row.signature for row in rows if row.signature is not None]
    common = {
        group: [m for m in first.groups[group] if all(m in row.groups[group] for row in rows)]
        for group in first.groups
        if all(group in row.groups for row in rows)
    }
    values = {
        group: {m: [row.groups[group][m] for row in rows] for m in measures}
        for group, measures in common.items()
    }
    spread = {
        group: {m: statistics.stdev(scores) for m, scores in measures.items()}
        for group, measures in values.items()
        if len(rows) > 1
    }
    return Row(
        name,
        groups={g: {m: statistics.fmean(v) for m, v in of.items()} for g, of in values.items()},
        pairs=first.pairs,
        items={id: statistics.fmean(row.items[id] for row in rows) for id in first.items},
        conventions=first.conventions,
        folder=(name,),
        exact={id: statistics.fmean(row.exact[id] for row in rows) for id in first.exact},
        signature=signature.common(signed) if signed else None,
        members=tuple(rows),
        spread=spread,
        masks=" and ".join(dict.fromkeys(row.masks for row in rows if row.masks)),
        judge=" and ".join(dict.fromkeys(row.judge for row in rows if row.judge)),
    )
