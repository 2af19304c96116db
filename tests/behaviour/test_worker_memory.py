"""A worker takes the pages that its layers freed, in the thread in which Ray Data calls it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np, ray, torch
from cc_prep.devices import keep_freed_memory
from pipelines import engine

class Step:
    def __init__(self):
        keep_freed_memory()

    def __call__(self, batch):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(2**24)  # 64 MB, 16,384 pages; numpy would ask for huge ones
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        return {"faults": np.array([faults])}

engine.start()
rows = ray.data.range(8, override_num_blocks=8).map_batches(Step, concurrency=1, batch_size=1)
found = sorted(row["faults"] for row in rows.take_all())
engine.stop()
print("faults", *found)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is set on Linux alone")
def test_a_worker_keeps_what_it_frees() -> None:
    without = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=without
    )
    faults = [int(count) for count in done.stdout.split()[-8:]]
    # Of the pages that a call writes. The first calls have none yet, or lose some to Ray's threads.
    assert min(faults) < 163_840 / 4
