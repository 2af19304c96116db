"""Figures in words and tables."""

from __future__ import annotations

from cc_prep.words import aligned, counted


def test_one_has_no_plural() -> None:
    assert [counted(1, "fault"), counted(2000, "fault")] == ["1 fault", "2,000 faults"]


def test_columns_of_a_table_are_aligned() -> None:
    """Keeps away: tables on the terminal in which nobody finds the column of a figure."""
    table = (
        "before\n| | pairs | CIDEr |\n|---|---|---|\n| total | 1,000 | 98.20 |\n| 変化 | 7 | 1.00 |"
    )
    assert aligned(table).split("\n") == [
        "before",
        "|       | pairs | CIDEr |",
        "| ----- | ----: | ----: |",
        "| total | 1,000 | 98.20 |",
        "| 変化  |     7 |  1.00 |",
    ]
    assert aligned("no table | here") == "no table | here"
