"""A run's log as curves in SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cc_prep import strict_json
from cc_train.training.metric_logger import LOG

WIDTH, HEIGHT, MAX_POINTS = 360, 150, 400
FIRST = ("loss", "CIDEr")

Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Curve:
    """A figure over steps.

    Attributes:
        path: Of an SVG of WIDTH × HEIGHT, whose lower and upper ends are low and high: the least
            and the greatest value.
        first, last: Steps.
        value: The last one.
    """

    name: str
    part: str
    path: str
    low: float
    high: float
    first: int
    last: int
    value: float


def read(run: Path) -> dict[tuple[str, str], Points]:
    """(part, figure) → its points in a run's log; lines cut short by a kill are left out."""
    points: dict[tuple[str, str], Points] = {}
    path = run / LOG
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        try:
            row = strict_json.loads(line)
            part, step = str(row.pop("part")), int(row.pop("step"))
            values = {
                name: float(value) for name, value in row.items() if isinstance(value, int | float)
            }
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
        for name, value in values.items():
            if math.isfinite(value):
                points.setdefault((part, name), []).append((step, value))
    return points


def draw(log: Mapping[tuple[str, str], Points]) -> list[Curve]:
    """A curve of each figure that is not always 0: first those by which a training is judged."""
    shown = [item for item in log.items() if not _is_zero(item[1])]
    ranked = sorted(shown, key=lambda item: _rank(*item[0]))
    return [_curve(part, name, points) for (part, name), points in ranked]


def zeros(log: Mapping[tuple[str, str], Points]) -> list[str]:
    """The names of the figures that are always 0, such as losses that a run does not use."""
    return sorted(f"{part}: {name}" for (part, name), points in log.items() if _is_zero(points))


def _is_zero(points: Points) -> bool:
    return all(value == 0 for _, value in points)


def _rank(part: str, name: str) -> tuple[int, bool, str]:
    base = "loss" if name.startswith("loss_") else name  # of a phase of the training
    first = FIRST.index(base) if base in FIRST else len(FIRST)
    return first, part == "validation", name


def _curve(part: str, name: str, points: Points) -> Curve:
    thin = thinned(points)
    logged = [value for _, value in points]  # the path has means, which lie between these
    low, high = min(logged), max(logged)
    first, last = points[0][0], points[-1][0]
    span, length = (high - low) or 1.0, (last - first) or 1
    corners = [
        f"{(step - first) / length * WIDTH:.1f},{(high - value) / span * HEIGHT:.1f}"
        for step, value in thin
    ]
    path = "M" + " L".join(corners)
    return Curve(
        name=name,
        part=part,
        path=path,
        low=low,
        high=high,
        first=first,
        last=last,
        value=points[-1][1],
    )


def thinned(points: Sequence[tuple[int, float]]) -> Points:
    """At most MAX_POINTS, each the mean of its neighbours."""
    step = max(1, math.ceil(len(points) / MAX_POINTS))
    windows = [points[i : i + step] for i in range(0, len(points), step)]
    return [(window[-1][0], sum(value for _, value in window) / len(window)) for window in windows]
