"""How often a journal is written: seldom on a slow store, and never for all too many pairs."""

from __future__ import annotations

import pytest

from pipelines.state import journal as journal_module


@pytest.mark.parametrize(
    ("write", "pair", "span"),
    [(0.001, 0.5, 1), (0.001, 0.05, 1), (0.05, 0.5, 5), (0.05, 0.1, 25), (0.1, 0.01, 32),
     (0.001, 0.0, 32), (0.0, 0.0, 1)],
)  # fmt: skip
def test_span(write: float, pair: float, span: int) -> None:
    """Keeps away: a GPU that waits for a PUT at every sequence."""
    measured = journal_module.Pace()
    measured.measured(write, pair)
    assert measured.pairs_per_journal_write == span


def test_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: now[0])
    measured = journal_module.Pace()
    with measured.writing():
        now[0] += 0.05
    measured.worked(0.5)
    assert measured.pairs_per_journal_write == 5
