"""How a long piece of work tells how far it is: a bar on a terminal, lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

# Called with how much is done, of how much.
Progress = Callable[[int, int], None]
T = TypeVar("T")

LINE_SECONDS = 15.0  # between two lines in a log
QUIET_SECONDS = 2.0  # until a bar for what mostly takes no time
STEP = 1000  # items of `told` between two looks at the clock

_commands = False  # whether this process is one of ours, which may print
_shown = False  # a bar: there is one at a time


def of_command() -> None:
    """Lets readers tell how far they are from now on; called by our commands alone."""
    global _commands
    _commands = True


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


@contextmanager
def progress_bar(description: str) -> Iterator[Progress]:
    """A callback (done, total) that moves a bar on a terminal, and prints lines elsewhere."""
    global _shown
    from cc_prep.console import on_stderr

    console = on_stderr()
    outer, _shown = _shown, True
    try:
        if console.is_terminal and not outer:
            from rich.progress import Progress

            with Progress(console=console, transient=True) as bar:
                task = bar.add_task(description, total=None)
                yield lambda done, total: bar.update(task, completed=done, total=total)
        else:
            yield _lines(console, description)
    finally:
        _shown = outer


def _lines(console: Console, description: str) -> Progress:
    """A callback that prints a line from time to time, and none of what is over soon."""
    printed = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= LINE_SECONDS:
            printed = time.monotonic()
            console.print(f"{description}: {done:,} of {total:,}")

    return tell


def told(items: Sequence[T], description: str) -> Iterator[T]:
    """The items one by one; a command that takes long over them tells how far it is."""
    if not _commands or _shown or len(items) <= STEP:
        yield from items
        return
    began, done = time.monotonic(), 0
    while done < len(items) and time.monotonic() - began < QUIET_SECONDS:
        yield from items[done : done + STEP]
        done += STEP
    if done < len(items):
        with progress_bar(description) as progress:
            for start in range(done, len(items), STEP):
                progress(start, len(items))
                yield from items[start : start + STEP]
