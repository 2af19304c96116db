"""Memory of a job while the data grows sixteenfold: it should stay flat.

One shard holds all pairs, so this is a shard's growth as well as a data set's. Peak resident
memory of the worker (VmHWM of /proc) and of the driver (getrusage).

    python benchmarks/bench_memory.py                    # interpolate
    python benchmarks/bench_memory.py build 8 32         # pairs to training shards, fewer sizes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from lib.measuring import report, watching

from cc_prep.datasets import sample_videos

SIZES = (8, 32, 128)


def main() -> None:
    step = sys.argv[1] if len(sys.argv) > 1 else "interpolate"
    sizes = tuple(int(size) for size in sys.argv[2:]) or SIZES
    found = []
    with tempfile.TemporaryDirectory() as folder:
        sample_videos.fetch(f"{folder}/videos")
        for pairs in sizes:
            worker, driver = peaks(folder, step, pairs)
            found.append({"pairs": pairs, "worker_mb": worker, "driver_mb": driver})
            print(f"{pairs:4} pairs: worker {worker} MB, driver {driver} MB", flush=True)
    growth = found[-1]["worker_mb"] / found[0]["worker_mb"]
    ratio = sizes[-1] / sizes[0]
    print(f"worker's peak × {growth:.2f} for × {ratio:.0f} pairs")
    rows = {"step": step, "rows": found, "worker_growth": round(growth, 3)}
    report("memory", rows)


def peaks(folder: str, step: str, pairs: int) -> tuple[float, float]:
    """Peak MB of the worker's and of the driver's process in one run."""
    command = f"""{Path(sys.executable).parent}/cc-prep {step} video --workers 1
        --root {folder}/videos --out {folder}/{pairs} --limit {pairs}
        --set video.stride=3 --set shards.pairs_per_shard=512"""
    with watching("ray::MapWorker") as worker:
        job = subprocess.Popen(command.split(), stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(job.pid, 0)
    assert status == 0
    return round(worker()), round(used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
