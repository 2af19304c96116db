"""Memory of a job while the data grows sixteenfold: it should stay flat.

One shard holds all pairs, so this is a shard's growth as well as a data set's. Peak resident
memory (VmHWM) of the worker and of the driver, read from /proc.

    python benchmarks/bench_memory.py                    # interpolate
    python benchmarks/bench_memory.py build 8 32         # pairs to training shards, fewer sizes
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import report

from cc_prep.datasets import samples

SIZES = (8, 32, 128)


def main() -> None:
    step = sys.argv[1] if len(sys.argv) > 1 else "interpolate"
    sizes = tuple(int(size) for size in sys.argv[2:]) or SIZES
    found = []
    with tempfile.TemporaryDirectory() as folder:
        samples.fetch(f"{folder}/videos")
        for pairs in sizes:
            worker, driver = peaks(folder, step, pairs)
            found.append({"pairs": pairs, "worker_mb": worker, "driver_mb": driver})
            print(f"{pairs:4} pairs: worker {worker} MB, driver {driver} MB", flush=True)
    growth = found[-1]["worker_mb"] / found[0]["worker_mb"]
    ratio = sizes[-1] / sizes[0]
    print(f"worker's peak × {growth:.2f} for × {ratio:.0f} pairs")
    rows = {"step": step, "rows": found, "worker_growth": round(growth, 3)}
    report("memory", rows)


def peaks(folder: str, step: str, pairs: int) -> tuple[int, int]:
    """Peak MB of the worker's and of the driver's process in one run."""
    command = f"""{Path(sys.executable).parent}/cc-prep {step} video --workers 1
        --root {folder}/videos --out {folder}/{pairs} --limit {pairs}
        --set video.stride=3 --set shards.pairs_per_shard=512"""
    job = subprocess.Popen(command.split(), stdout=subprocess.DEVNULL)
    worker = driver = 0
    while job.poll() is None:
        driver = max(driver, peak(job.pid))
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and name(process).startswith("ray::MapWorker"):
                worker = max(worker, peak(int(process.name)))
        time.sleep(0.2)
    assert job.returncode == 0
    return worker // 1024, driver // 1024


def name(process: Path) -> str:
    try:
        return (process / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def peak(pid: int) -> int:
    """VmHWM of a process in kB; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    main()
