"""Errors of other libraries in our messages."""

from __future__ import annotations

import pytest

from cc_prep.errors import first_line


@pytest.mark.parametrize(
    ("message", "expected"),
    [("a\nb", "a"), ("\n a\n", "a"), ("", "OSError"), ("\n", "OSError"), ("x" * 201, "x" * 200)],
)
def test_first_line(message: str, expected: str) -> None:
    """Keeps away: an IndexError for an error without a message, and a page of an error's text."""
    assert first_line(OSError(message)) == expected
