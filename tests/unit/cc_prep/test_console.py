"""Lines that commands print beside their result."""

from __future__ import annotations

import pytest

from cc_prep.console import on_stderr

LINE = "train 500/10000: loss 1.234, in /data[v2]/x[/v2] " + "a long line " * 20 + "82 min left"


def test_a_line_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Keeps away: lines that rich breaks in a log file, so that grep and tail see a half of them;
    and an error for brackets in a path."""
    on_stderr().print(LINE)
    assert capsys.readouterr().err == f"{LINE}\n"
