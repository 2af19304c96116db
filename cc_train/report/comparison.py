"""Evaluations side by side as one HTML page, or as tables on a terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from cc_prep import storage
from cc_prep.console import on_stdout
from cc_prep.errors import UserError
from cc_prep.inspect import pages
from cc_prep.storage import outputs
from cc_prep.terminal import echo
from cc_train.evaluation.comparing import published_rows, scored_rows, several_runs, side_by_side
from cc_train.evaluation.comparing.side_by_side import Interval, Table
from cc_train.report.latex import render
from cc_train.report.page import FOLDER

SHOWN = "CIDEr"  # drawn as bars
PIPE_WIDTH = 200  # characters; into a file or a pipe nothing is cut short


def compare(
    paths: Sequence[str],
    dataset: str | None,
    mixed: bool,
    out: str | None,
    latex: bool,
    as_json: bool,
) -> None:
    """Shows evaluations side by side: `cc-train compare`. Raises UserError."""
    if not paths and dataset is None:
        raise UserError("nothing to compare", "Give runs, or --dataset, or both")
    if out is not None:
        outputs.check_file(out)
    ours = scored_rows.distinct([several_runs.read(path) for path in paths])
    if not mixed:
        side_by_side.require_same(ours)
    rows = [*ours, *(published_rows.of_dataset(dataset) if dataset else ())]
    tables, gains = side_by_side.tables(rows), side_by_side.intervals(ours)
    notes = side_by_side.notes(rows)
    if dataset is not None:
        notes = [*published_rows.unchecked(dataset, ours, mixed), *notes]
    if out is not None:
        names = " and ".join(row.name for row in ours) or f"published figures of {dataset}"
        title = names if len(ours) < 4 else f"{len(ours)} systems"
        write(out, title, tables, gains, notes)
        echo(out, err=True)
    if as_json:
        echo(json.dumps(side_by_side.to_json(tables, gains, notes), ensure_ascii=False))
    elif latex:
        echo(render(tables, notes))
    else:
        console = on_stdout()
        wide = console if console.is_terminal else on_stdout(PIPE_WIDTH)
        show(wide, tables, gains, notes)


def write(
    path: str, title: str, tables: Sequence[Table], gains: Sequence[Interval], notes: Sequence[str]
) -> None:
    """Writes the page to a path or an object store. Bars are drawn to the best CIDEr of a table."""
    ceiling = {
        table.group: max([row.groups[table.group].get(SHOWN, 0.0) for row in table.rows] + [1e-9])
        for table in tables
    }
    page = (
        pages.environment(FOLDER)
        .get_template("comparison.html.j2")
        .render(title=title, tables=tables, gains=gains, notes=notes, shown=SHOWN, ceiling=ceiling)
    )
    storage.write_bytes(storage.named(path), page.encode("utf-8", "surrogatepass"))


def show(
    console: Console, tables: Sequence[Table], gains: Sequence[Interval], notes: Sequence[str]
) -> None:
    """Prints the tables, the best of each measure in bold."""
    for table in tables:
        drawn = RichTable(
            title=escape(table.group),
            title_justify="left",
            title_style="bold",
            box=box.MARKDOWN,  # as `cc-train evaluate` prints its tables
        )
        drawn.add_column("")
        for name in ("pairs", *table.measures):
            drawn.add_column(name, justify="right")
        drawn.add_column("marks")
        drawn.add_column("source")
        for row in table.rows:
            scores = row.groups[table.group]
            pairs = f"{row.pairs[table.group]:,}" if table.group in row.pairs else ""
            spread = row.spread.get(table.group, {})
            values = [
                _value(scores.get(name), spread.get(name), table.leads(row, name))
                for name in table.measures
            ]
            drawn.add_row(
                escape(row.name),
                pairs,
                *values,
                ", ".join(row.marks.get(table.group, ())),
                escape(row.sources.get(table.group, "")),
                style="dim" if row.sources else None,
            )
        console.print(drawn)
    for gain in gains:
        console.print(
            f"{gain.name} over {gain.other}: {gain.measure} {gain.difference:+.1f} "
            f"({gain.low:+.1f} … {gain.high:+.1f}, 95 %)",
            markup=False,
            highlight=False,
        )
    for note in notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def _value(score: float | None, spread: float | None, best: bool) -> str:
    if score is None:
        return ""
    text = f"{score:.1f}" if spread is None else f"{score:.1f} ± {spread:.1f}"
    return f"[bold]{text}[/bold]" if best else text
