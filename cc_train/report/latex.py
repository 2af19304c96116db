"""Comparison tables as LaTeX, for the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from cc_train.evaluation.comparing.scored_rows import Row
from cc_train.evaluation.comparing.side_by_side import Table

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    **{character: f"\\{character}" for character in "&%$#_"},
}


def escaped(text: str) -> str:
    """Text that LaTeX prints literally."""
    return "".join(SPECIAL.get(character, character) for character in text)


def render(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """A `table` for each group, the best of each measure in bold, with the notes as comments."""
    comments = [f"% {note}" for note in notes]
    return "\n".join([*comments, *(line for table in tables for line in _table(table))])


def _table(table: Table) -> list[str]:
    columns = "l" + "r" * len(table.measures) + "l"
    names = " & ".join(map(escaped, table.measures))
    return [
        r"\begin{table}",
        r"\centering",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        rf"System & {names} & Source \\",
        r"\midrule",
        *(_line(row, table) for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        rf"\caption{{{escaped(table.group)}}}",
        r"\end{table}",
    ]


def _line(row: Row, table: Table) -> str:
    source = ", ".join((row.sources.get(table.group, ""), *row.marks.get(table.group, ())))
    values = [_value(row, table, measure) for measure in table.measures]
    return " & ".join((escaped(row.name), *values, escaped(source.strip(", ")))) + r" \\"


def _value(row: Row, table: Table, measure: str) -> str:
    score = row.groups[table.group].get(measure)
    if score is None:
        return "--"
    spread = row.spread.get(table.group, {}).get(measure)
    text = f"{score:.1f}" + ("" if spread is None else rf" $\pm$ {spread:.1f}")
    return rf"\textbf{{{text}}}" if table.leads(row, measure) else text
