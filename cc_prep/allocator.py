"""glibc's allocator, set for networks on a CPU: what a layer frees, the next one takes."""

from __future__ import annotations

import ctypes

# Of <malloc.h>. A threshold above 32 MB is refused.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {MMAP_THRESHOLD: 2**25, TRIM_THRESHOLD: 2**29, TOP_PAD: 2**26}


def keep_freed_memory() -> None:
    """For the rest of the process, keeps up to 512 MB of what is freed.

    Otherwise every large tensor goes back to the kernel, and the next one's pages are faulted in
    and cleared anew: a seventh of the time of RIFE and of a VQGAN (docs/performance.md). Does
    nothing where the C library is another.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in SETTINGS.items():
            mallopt(setting, value)
