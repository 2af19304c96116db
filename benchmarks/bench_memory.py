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

import click
from lib.measuring import report, watching

from cc_prep.datasets import sample_videos

SIZES = (8, 32, 128)


@click.command()
@click.argument("step", default="interpolate")
@click.argument("pairs", type=int, nargs=-1)
def main(step: str, pairs: tuple[int, ...]) -> None:
    """Measures `cc-prep STEP` of so many PAIRS, 8 32 128 by default."""
    sizes = pairs or SIZES
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sample_videos.fetch(f"{folder}/videos")
        for size in sizes:
            worker, driver = peaks(folder, step, size)
            rows.append({"pairs": size, "worker_mb": worker, "driver_mb": driver})
            print(f"{size:4} pairs: worker {worker} MB, driver {driver} MB", flush=True)
    growth = rows[-1]["worker_mb"] / rows[0]["worker_mb"]
    ratio = sizes[-1] / sizes[0]
    print(f"worker's peak × {growth:.2f} for × {ratio:.0f} pairs")
    report("memory", {"step": step, "rows": rows, "worker_growth": round(growth, 3)})


def peaks(folder: str, step: str, pairs: int) -> tuple[float, float]:
    """Peak MB of the worker's and of the driver's process in one run."""
    command = f"""{Path(sys.executable).parent}/cc-prep {step} video --workers 1
        --root {folder}/videos --out {folder}/{pairs} --limit {pairs}
        --set video.stride=3 --set shards.pairs_per_shard=512"""
    with watching("ray::MapWorker") as worker:
        job = subprocess.Popen(command.split(), stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(job.pid, 0)
    assert status == 0
    return round(worker()), round(usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
