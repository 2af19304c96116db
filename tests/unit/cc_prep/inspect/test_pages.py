"""What our HTML pages share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cc_prep.inspect import pages


def test_a_page_says_how_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: folders of a user, and passwords, on a page that is mailed around."""
    monkeypatch.setattr(
        sys, "argv", ["/home/me/.venv/bin/cc-train", "report", "/data/run", "http://me:pw@host/a b"]
    )
    assert pages.made()["command"] == "cc-train report run 'http://host/a b'"
    monkeypatch.setattr(sys, "argv", ["/home/me/own.py", "--token", "secret"])
    assert pages.made()["command"] == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (6.12e-9, "0"),
        (0.0064, "0.006"),
        (0.5, "0.500"),
        (82.64, "82.64"),
        (5e3, "5,000"),
        (12345.6, "12,346"),
    ],
)
def test_figures_are_plain(value: float, text: str) -> None:
    """Keeps away: `6.12e-09` among figures of 80."""
    assert pages.plain(value) == text
