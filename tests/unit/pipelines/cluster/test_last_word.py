"""A job that ends by force ends with a message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipelines.cluster.session import LAST_WORD

PROGRAM = """
import os, signal
from pipelines.cluster.session import last_word
with last_word():
    {end}
"""


@pytest.mark.parametrize(
    ("end", "said"),
    [("os._exit(1)", True), ("os.kill(os.getpid(), signal.SIGKILL)", True), ("pass", False),
     ("raise SystemExit(1)", False)],
)  # fmt: skip
def test_it_is_said_only_after_an_end_by_force(end: str, said: bool) -> None:
    """Keeps away: exit code 1 without a word, where Ray's node manager died (Ray calls _exit)."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    # The path of the log holds the number of the process.
    assert done.stderr.count("\n") == said
    assert done.stderr.startswith(LAST_WORD.partition(";")[0] if said else "")
