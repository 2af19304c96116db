"""SIGTERM, which schedulers and `kill` send, as Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

# Said by a command that is stopped before it can say more, such as in the first second of a job. It
# must be true of those that keep nothing too, such as `inspect`.
STOPPED = "stopped. Run the same command again; jobs and trainings go on from what is finished"


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, so that what is half-written is removed."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    old_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old_handler)
