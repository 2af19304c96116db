"""How a long piece of work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

# Called with how much is done, of how much.
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""
