"""Figures of several seeds → tables in Markdown with intervals, put into a page of the docs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean of some seeds, and half of its 95 % interval (Student's t); None of one seed."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, None
    t = round(float(stats.t.ppf(0.975, len(values) - 1)), 3)  # as printed tables of it have it
    return mean, t * statistics.stdev(values) / len(values) ** 0.5


def cell(values: Sequence[float]) -> str:
    """`81.2 ± 1.3`, of one seed `81.2`, of none nothing."""
    if not values:
        return ""
    mean, half = interval(values)
    return f"{mean:.1f}" if half is None else f"{mean:.1f} ± {half:.1f}"


def table_of(
    rows: Mapping[str, Mapping[int, Mapping[str, Any]]],
    figures: Sequence[str],
    further: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """A table of these figures, which a row may lack.

    rows: figures by seed, by the row's title. further: columns of text, each by the row's title.
    """
    columns = further or {}
    head = ["", "seeds", *figures, *columns]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for title, seeds in rows.items():
        cells = [cell([float(one[f]) for one in seeds.values() if f in one]) for f in figures]
        texts = [column.get(title, "") for column in columns.values()]
        lines.append("| " + " | ".join([title, str(len(seeds)), *cells, *texts]) + " |")
    return "\n".join(lines)


def replace(page: Path, mark: str, text: str) -> None:
    """Puts a table on a page, between `<!-- mark -->` and the next `<!-- end -->`."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    head, separator, rest = page.read_text().partition(begin)
    if not separator:
        sys.exit(f"{page}: has no {begin.strip()}")
    tail = rest.partition(end)[2]
    page.write_text(f"{head}{begin}{text}\n{end}{tail}")
