"""Opening a journal: what a worker learns from the journal that an earlier worker left behind."""

from __future__ import annotations

import socket

from cc_prep.errors import JobFailed
from pipelines.state.journal import Journal

CRASHES_OUTSIDE_PAIRS = 3


def open_journal(shard: str, run: str, previous: Journal | None) -> Journal:
    """A new journal that remembers the crashes of the one left behind, if there is one.

    Raises JobFailed if workers die again and again with no pair in flight.
    """
    journal = Journal(shard, run, socket.gethostname())
    if previous is None:
        return journal
    journal.crashes = dict(previous.crashes)
    # Only a crash that this run outlived is a worker's: otherwise the whole job was stopped.
    if previous.run != run:
        return journal
    journal.crashes_outside_pairs = previous.crashes_outside_pairs
    journal.device_faults = previous.device_faults
    journal.device_crashes = dict(previous.device_crashes)
    if previous.device_fault:
        journal.device_faults += 1
        journal.last_device_fault = previous.device_fault
    # A GPU that turns out broken takes its crashes with it: they are forgotten with the run.
    counts = journal.device_crashes if previous.device_fault else journal.crashes
    for key in previous.in_flight:
        counts[key] = counts.get(key, 0) + 1
    if not previous.in_flight:
        journal.crashes_outside_pairs += 1
    if journal.crashes_outside_pairs >= CRASHES_OUTSIDE_PAIRS:
        raise JobFailed(
            f"{shard}: its worker died {journal.crashes_outside_pairs} times between pairs"
        )
    return journal
