"""Figures of several seeds → tables in Markdown with intervals, and curves with their range."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.ablation_rows import TABLES, Row

FIGURES = ("exact", "told apart", "type", "color", "shape", "CIDEr")
# Student's t of a 95 % interval, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571}


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean of some seeds, and half of its 95 % interval; None of one seed or of too many."""
    mean = statistics.fmean(values)
    half = T95.get(len(values) - 1)
    if half is None:
        return mean, None
    return mean, half * statistics.stdev(values) / len(values) ** 0.5


def cell(values: Sequence[float]) -> str:
    """`81.2 ± 1.3`, of one seed `81.2`, of none nothing."""
    if not values:
        return ""
    mean, half = interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def table_of(
    results: Mapping[str, Mapping[int, Mapping[str, Any]]],
    names: Sequence[str],
    columns: Sequence[str],
) -> str:
    """A table of trainings by name, those of `names` first, and of these columns."""
    lines = ["| " + " | ".join(["", "seeds", *columns]) + " |", "|---" * (len(columns) + 2) + "|"]
    for name in [*names, *(name for name in results if name not in names)]:
        seeds = results.get(name, {})
        cells = [cell([float(one[f]) for one in seeds.values() if f in one]) for f in columns]
        lines.append("| " + " | ".join([name, str(len(seeds)), *cells]) + " |")
    return "\n".join(lines)


def markdown(table: str, results: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> str:
    """A table. results: figures by training and seed."""
    rows = TABLES[table]
    papers = any(row.paper for row in rows)
    head = ["", "seeds", *FIGURES, *(["paper's CIDEr"] if papers else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        seeds = results.get(row.training, {})
        cells = [cell([float(one[name]) for one in seeds.values()]) for name in FIGURES]
        paper = [f"{row.paper}" if row.paper else ""] if papers else []
        lines.append("| " + " | ".join([row.name, str(len(seeds)), *cells, *paper]) + " |")
    return "\n".join(lines)


def curves(run: Path) -> list[tuple[int, float]]:
    """Exact captions of the validation pairs in %, by step, of a run's log."""
    points = []
    for line in (run / "log.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if "right_exact" in entry:
            points.append((int(entry["step"]), float(entry["right_exact"])))
    return points


def draw(table: str, results: Mapping[str, Mapping[int, Mapping[str, Any]]], path: Path) -> None:
    """A picture of the curves of a table's rows: the mean of the seeds and their range."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for row in TABLES[table]:
        _curve(axes, row, [one["curve"] for one in results.get(row.training, {}).values()])
    axes.set(xlabel="step of stage 2", ylabel="exact captions of validation pairs, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def _curve(axes: Any, row: Row, seeds: Sequence[Sequence[Sequence[float]]]) -> None:
    if not seeds:
        return
    curves = [{int(step): float(value) for step, value in seed} for seed in seeds]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    [line] = axes.plot(steps, [statistics.fmean(at) for at in values], label=row.name)
    low, high = [min(at) for at in values], [max(at) for at in values]
    axes.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
