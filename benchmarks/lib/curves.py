"""How trainings went: their validations by step, and a picture of several."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib.trainings import validations

Curve = Sequence[tuple[int, float]]


def curve_of(run: Path) -> list[tuple[int, float]]:
    """Exact captions of the validation pairs in %, by step, of a run's log."""
    return [(int(entry["step"]), float(entry["right_exact"])) for entry in validations(run)]


def draw(rows: Mapping[str, Sequence[Curve]], path: Path) -> None:
    """A picture of the mean of each row's seeds and their range. rows: curves by title."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for title, seeds in rows.items():
        if seeds:
            _add(axes, title, seeds)
    axes.set(xlabel="step of stage 2", ylabel="exact captions of validation pairs, %")
    axes.set_ylim(0, 100)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)


def _add(axes: Any, title: str, seeds: Sequence[Curve]) -> None:
    curves = [{int(step): float(value) for step, value in seed} for seed in seeds]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    values = [[curve[step] for curve in curves] for step in steps]
    [line] = axes.plot(steps, [statistics.fmean(at) for at in values], label=title)
    low, high = [min(at) for at in values], [max(at) for at in values]
    axes.fill_between(steps, low, high, alpha=0.2, color=line.get_color())
