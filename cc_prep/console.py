"""rich's consoles: on stderr for notes, progress and warnings, on stdout for drawn tables."""

from __future__ import annotations

from typing import IO, Any

from rich.console import Console
from rich.text import Text

from cc_prep.terminal import printable


class _Console(Console):
    """A console that shows what a text holds and obeys nothing in it, see `printable`."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def on_stderr(file: IO[str] | None = None) -> Console:
    """A console on stderr, or a file, that prints text as it is, and each line as one line.

    With rich's markup a path such as `data[v2]` would lose its brackets, and `x[/v2]` would be an
    error. Without soft_wrap rich breaks lines at 80 columns where the output goes to a file.
    """
    return _Console(file=file, stderr=file is None, markup=False, highlight=False, soft_wrap=True)


def on_stdout(width: int | None = None) -> Console:
    """A console on stdout, of the terminal's width by default."""
    return _Console(width=width)
