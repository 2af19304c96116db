"""What a log says of work that takes long."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cc_prep import progress


class Clock:
    """A second passes with each look at it."""

    now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(progress, "_commands", True)
    yield clock
    assert not progress._shown


def test_a_long_table_tells_how_far_it_is(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keeps away: a minute of silence while 80,000 rows are read, and a line for each row."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 5.0)
    rows = list(range(20_500))
    assert list(progress.told(rows, "reading pairs.csv")) == rows, "each once"
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "reading pairs.csv: 5,000 of 20,500"
    assert len(lines) == 4
    assert list(progress.told(rows[:1000], "reading")) == rows[:1000]
    monkeypatch.setattr(progress, "_commands", False)
    assert list(progress.told(rows, "reading")) == rows
    assert capsys.readouterr().err == "", "a short table, or a program that uses us"


def test_a_bar_in_a_bar_is_none(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Keeps away: two bars at a time, which rich refuses with an error."""
    with progress.progress_bar("outer"):
        assert len(list(progress.told(range(50_000), "inner"))) == 50_000
    assert "inner" not in capsys.readouterr().err
