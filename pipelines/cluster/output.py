"""Diverts Ray's own output to a log, whatever the settings of logging."""

from __future__ import annotations

import contextlib
import os
import sys
import time

from rich.console import Console

from cc_prep.console import on_stderr
from cc_prep.weights.registry import cache_folder

# Of this process: two jobs of a user at a time have two logs.
LOG = cache_folder() / "logs" / f"ray-{os.getpid()}.log"
KEEP_SECONDS = 7 * 86400

_DIVERTED: dict[int, int] = {}


def messages() -> Console:
    """A console on standard error, separate from Ray's own output."""
    return on_stderr(os.fdopen(os.dup(2), "w", encoding="utf-8"))


def divert_output() -> None:
    """Sends both standard streams to the log: Ray writes to them whatever logging says."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    for old in LOG.parent.glob("ray-*.log"):
        with contextlib.suppress(OSError):  # another job removes it at the same time
            if time.time() - old.stat().st_mtime > KEEP_SECONDS:
                old.unlink()
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.flush()
        _DIVERTED[number] = os.dup(number)
        os.dup2(log, number)
    os.close(log)


def restore_output() -> None:
    """Gives this process its standard streams back."""
    while _DIVERTED:
        number, saved = _DIVERTED.popitem()
        (sys.stdout if number == 1 else sys.stderr).flush()
        os.dup2(saved, number)
        os.close(saved)
