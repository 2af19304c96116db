"""How a long piece of work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with how much is done, of how much.
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A callback (done, total) that moves a bar on a terminal, and is silent elsewhere."""
    from rich.progress import Progress

    from cc_prep.console import on_stderr

    console = on_stderr()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
