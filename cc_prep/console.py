"""The console on stderr, for all output that is no result: notes, progress and warnings."""

from __future__ import annotations

from typing import IO

from rich.console import Console


def on_stderr(file: IO[str] | None = None) -> Console:
    """A console on stderr, or a file, that prints text as it is, and each line as one line.

    With rich's markup a path such as `data[v2]` would lose its brackets, and `x[/v2]` would be an
    error. Without soft_wrap rich breaks lines at 80 columns where the output goes to a file.
    """
    return Console(file=file, stderr=file is None, markup=False, highlight=False, soft_wrap=True)
