"""The allocator keeps what layers free: seen by the pages that the kernel has to give anew."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from cc_prep.models.cpu.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import numpy as np
np.ones(2**22, np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(2**22, np.float32)  # 16 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is set on Linux alone")
def test_large_arrays_take_the_pages_of_those_before() -> None:
    assert faults("kept") < faults("plain") / 4
