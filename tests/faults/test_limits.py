"""Memory and open files stay as they are while the data grows tenfold; disk is asked for first."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cc_prep.formats import tar
from tests import miniatures
from tests.conftest import Command
from tests.faults import processes
from tests.faults import test_strangers as strangers

FEW, MANY = 20, 200
MAX_WORKER_MB = 40  # more for ten times the pairs: what a worker's allocator may do
BYTES_A_SAMPLE = 2_000  # of the trainer, which keeps a list of all samples
STREAM = """
import glob, os, resource, sys
from cc_train.data import shard_index as catalogue
from cc_train.distributed import Ranks
from cc_train.data.stream import Stream, StreamSettings
entries = catalogue.read([sys.argv[1]])
stream = Stream(
    entries, lambda samples, rngs: {"n": len(samples)}, batch_size=8, seed=0,
    settings=StreamSettings(), ranks=Ranks(),
)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
for number in range(100):
    stream(number)
print(len(entries), peak(), len(os.listdir("/proc/self/fd")))
"""


def table(root: Path, rows: int) -> None:
    """So many pairs of the same few images."""
    root.mkdir()
    for number in range(4):
        miniatures.image(root / f"{number}.png", number)
    with (root / "pairs.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["id", "before", "after", "caption"])
        for number in range(rows):
            ends = (f"{number % 4}.png", f"{(number + 1) % 4}.png")
            written.writerow([number, *ends, f"the {number}th thing moved"])


def measured(root: Path, out: Path) -> dict[str, int]:
    """The largest memory in MB, and files, of the worker and of the driver of a job."""
    job = processes.start(
        "interpolate", "own", "--root", root, "--out", out, "--split", "train", "--workers", "1",
        "--set", "interpolate.method=crossfade", "--set", "interpolate.depth=1",
        "--set", "image_size=224",
        "--set", f"shards.pairs_per_shard={MANY}",
    )  # fmt: skip
    most = {"worker MB": 0, "worker files": 0, "driver MB": 0, "driver files": 0}
    groups = {"worker": list[psutil.Process](), "driver": processes.itself(job)}
    while job.poll() is None:
        # One worker, which stays; looking through all processes takes long.
        groups["worker"] = groups["worker"] or processes.actors(job)
        for name, group in groups.items():
            for process in group:
                try:
                    size, files = peak(process), process.num_fds()
                except (psutil.Error, OSError, ValueError):  # it ends just now
                    continue
                most[f"{name} MB"] = max(most[f"{name} MB"], size)
                most[f"{name} files"] = max(most[f"{name} files"], files)
        time.sleep(0.1)
    output = processes.ended(job)
    assert job.returncode == 0, output
    return most


def peak(process: psutil.Process) -> int:
    """The most memory in MB that a process has had so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [size] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(size) >> 10


def test_a_job_of_ten_times_the_pairs(tmp_path: Path) -> None:
    most_of = {}
    for rows in (FEW, MANY):
        table(tmp_path / str(rows), rows)
        most_of[rows] = measured(tmp_path / str(rows), tmp_path / f"out{rows}")
        print(rows, most_of[rows])
    few, many = most_of[FEW], most_of[MANY]
    assert min(few.values()) > 0
    assert many["worker MB"] <= few["worker MB"] + MAX_WORKER_MB
    assert many["driver MB"] <= few["driver MB"] + MAX_WORKER_MB
    assert many["worker files"] <= few["worker files"] + 3
    assert many["driver files"] <= few["driver files"] + 3


def test_a_stream_of_ten_times_the_samples(tmp_path: Path) -> None:
    sizes = {}
    # Of the rest nothing is read here.
    members = {name: strangers.MEMBERS[name] for name in ("json", "tokens.npy", "scores.npy")}
    for shards in (3, 30):
        folder = tmp_path / str(shards)
        for number in range(shards):
            with tar.write_shard(str(folder / f"train-{number:06d}.tar")) as (writer, _):
                for sample in range(500):
                    writer.add(f"a-train-{number:03d}{sample:04d}-change", members)
        done = subprocess.run(
            [sys.executable, "-c", STREAM, f"{folder}/*.tar"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sizes[shards] = [int(word) for word in done.stdout.split()]
        print(dict(zip(("samples", "bytes", "files"), sizes[shards], strict=True)))
    (few, small, files), (many, large, more_files) = sizes[3], sizes[30]
    assert many == 10 * few == 15_000
    assert large - small < BYTES_A_SAMPLE * (many - few)
    assert more_files == files


def test_the_disk_that_a_job_asks_for(
    tmp_path: Path, synth_root: Path, prep: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    """The estimate is enough for rendered scenes, and not many times too much."""
    arguments = (
        "interpolate", "synth", "--root", synth_root, "--out", tmp_path / "out",
        "--set", "interpolate.method=crossfade", "--set", "image_size=96",
    )  # fmt: skip
    assert prep(*arguments, "--dry-run").returncode == 0
    match = re.search(r"disk +about ([\d.]+) (\w?B)", capfd.readouterr().err)
    assert match is not None
    estimate = float(match[1]) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[match[2]]
    done = prep(*arguments)
    assert done.returncode == 0, done.stderr
    written = sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    print({"estimate": estimate, "written": written})
    assert estimate / 4 <= written <= estimate * 1.05
