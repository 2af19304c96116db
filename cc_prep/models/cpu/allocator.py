"""glibc's allocator, set for networks on a CPU: what a layer frees, the next one takes."""

from __future__ import annotations

import ctypes
import sys

# Of <malloc.h>; mallopt(3) has their meaning. No memory by mmap, none given back to the kernel, and
# one arena: what a thread of its own has freed, no other can take.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 2**26, ARENA_MAX: 1}

# For a process whose networks run in a thread that was there before, as Ray Data's workers do: it
# has an arena already, which is unmapped when it is empty, whatever is set above. Read when a
# process starts.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}


def keep_freed_memory() -> None:
    """For the rest of the process, keeps what is freed.

    Otherwise every large tensor goes back to the kernel, and the next one's pages are faulted in
    and cleared again: a seventh of a network's time (docs/performance.md). Does nothing where the C
    library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in SETTINGS.items():
            mallopt(setting, value)
