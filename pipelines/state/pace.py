"""The number of pairs that a journal records at a time, so that writing it takes little time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Share of the time of the pairs. On a disk a write takes a millisecond, and each batch has its own.
SHARE = 0.02
# Their inputs are held in memory, and after a crash they are tried one by one.
MOST = 32


class Pace:
    """Measures journal writes and work on pairs. span: number of pairs to record next time."""

    def __init__(self) -> None:
        self.span = 1
        self._write_seconds = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._write_seconds = time.monotonic() - began

    @contextmanager
    def working(self, pairs: int) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.measured(self._write_seconds, (time.monotonic() - began) / pairs)

    def measured(self, write_seconds: float, pair_seconds: float) -> None:
        """Sets the span from the measured times of a write and of a pair."""
        pairs = write_seconds / (SHARE * max(pair_seconds, 1e-9))
        self.span = max(1, min(MOST, math.ceil(pairs)))
