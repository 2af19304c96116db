"""How figures are put into words and tables."""

from __future__ import annotations

from itertools import groupby

from rich.cells import cell_len as width_of


def counted(number: int, noun: str) -> str:
    """A count with its noun: `1 fault`, `2,000 faults`. The plural of the noun takes an s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def aligned(markdown: str) -> str:
    """A text with the columns of its Markdown tables aligned: the first to the left, others right.

    Cells that hold a `|` are not expected.
    """
    done: list[str] = []
    for is_table, block in groupby(markdown.split("\n"), lambda line: line.startswith("|")):
        lines = list(block)
        done += _aligned_rows(lines) if is_table else lines
    return "\n".join(done)


def _aligned_rows(lines: list[str]) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = max(map(len, rows))
    rows = [row + [""] * (columns - len(row)) for row in rows]
    widths = [max(3, *(width_of(cell) for cell in column)) for column in zip(*rows, strict=True)]
    return ["| " + " | ".join(map(_padded, row, widths, range(columns))) + " |" for row in rows]


def _padded(cell: str, width: int, column: int) -> str:
    if set(cell) == {"-"}:
        return "-" * width if column == 0 else "-" * (width - 1) + ":"
    blanks = " " * (width - width_of(cell))
    return cell + blanks if column == 0 else blanks + cell


def duration(seconds: float) -> str:
    """A duration in the largest unit that gives two or more."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            count = seconds / length
            return f"{count:,.0f} {unit}" if count >= 10 else f"{count:.2g} {unit}"
    return f"{seconds:.0f} s"
