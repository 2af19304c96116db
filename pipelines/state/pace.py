"""The number of pairs that a journal records at a time, so that writing it takes little time."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Share of the time of the pairs. On a disk a write takes a millisecond, and each batch has its own.
SHARE = 0.02
# Their inputs are held in memory, and after a crash they are tried one by one.
MAX_PAIRS = 32


class Pace:
    """Measures journal writes and work on pairs.

    Attributes:
        pairs_per_journal_write: How many pairs to record with the next write.
    """

    def __init__(self) -> None:
        self.pairs_per_journal_write = 1
        self._write_seconds = 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Measures the block, which writes the journal."""
        began = time.monotonic()
        yield
        self._write_seconds = time.monotonic() - began

    def worked(self, pair_seconds: float) -> None:
        """Takes the time that a pair took, beside that of the last write."""
        self.measured(self._write_seconds, pair_seconds)

    def measured(self, write_seconds: float, pair_seconds: float) -> None:
        """Sets `pairs_per_journal_write` from the times of a write and of a pair."""
        pairs = write_seconds / (SHARE * max(pair_seconds, 1e-9))
        self.pairs_per_journal_write = max(1, min(MAX_PAIRS, math.ceil(pairs)))
