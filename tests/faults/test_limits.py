"""Memory and open files stay as they are while the data grows tenfold; disk is asked for first."""

from __future__ import annotations

import contextlib
import csv
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cc_prep.devices import ONE_ARENA
from cc_prep.formats import tar
from tests import dataset_factory
from tests.conftest import Command
from tests.faults import processes
from tests.faults import test_strangers as strangers

FEW, MANY = 20, 200
MAX_WORKER_MB = 40  # more for ten times the pairs: what a worker's allocator may do
BYTES_A_SAMPLE = 2_000  # of the trainer, which keeps a list of all samples
STREAM = """
import os, re, sys
from pathlib import Path
from cc_train.data import shard_index as catalogue
from cc_train.distributed import Ranks
from cc_train.data.stream import Stream, StreamSettings
for pattern in sys.argv[1:]:
    entries = catalogue.read([pattern])
    stream = Stream(
        entries, lambda samples, rngs: {"n": len(samples)}, batch_size=8, seed=0,
        settings=StreamSettings(), ranks=Ranks(),
    )
    for number in range(100):
        stream(number)
    [peak] = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(len(entries), int(peak) * 1024, len(os.listdir("/proc/self/fd")))
"""


def table(root: Path, rows: int) -> None:
    """So many pairs of the same few images; the one at FEW has an image of its own."""
    root.mkdir()
    for number in range(5):
        dataset_factory.image(root / f"{number}.png", number)
    with (root / "pairs.csv").open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(["id", "before", "after", "caption"])
        for number in range(rows):
            ends = (f"{number % 4}.png", f"{4 if number == FEW else (number + 1) % 4}.png")
            written.writerow([number, *ends, f"the {number}th thing moved"])


def largest(process: psutil.Process, most: tuple[int, int]) -> tuple[int, int]:
    """The most memory in MB that it had so far, and the most files."""
    with contextlib.suppress(psutil.Error, OSError, ValueError):  # it ends just now
        most = max(most[0], peak(process)), max(most[1], process.num_fds())
    return most


def peak(process: psutil.Process) -> int:
    """The most memory in MB that a process has had so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [size] = re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(size) >> 10


def test_a_job_of_ten_times_the_pairs(tmp_path: Path) -> None:
    """One worker makes one shard, and is held at the pair after the first few.

    Driver and worker are one process: to Ray, a shard of any size is one row.
    """
    root, out = tmp_path / "pairs", tmp_path / "out"
    table(root, MANY)
    with processes.held(root / "4.png") as hold:
        job = processes.start_alone(
            "interpolate", "own", "--root", root, "--out", out, "--split", "train",
            "--set", "interpolate.method=crossfade", "--set", "interpolate.depth=1",
            "--set", "image_size=224", "--workers", "1",
            "--set", f"shards.pairs_per_shard={MANY}", env={**hold.environment, **ONE_ARENA},
        )  # fmt: skip
        assert processes.wait_for(hold.is_reached, job), processes.ended(job)
        [process] = processes.itself(job)
        few = largest(process, (0, 0))
    many = few
    # What the job imports for its end, when the shard is there, has nothing to do with pairs.
    while job.poll() is None and not list(out.glob("sequences/*.tar")):
        many = largest(process, many)
        time.sleep(0.05)
    output = processes.ended(job)
    assert job.returncode == 0, output
    print(few, many)
    assert min(few) > 0
    assert many[0] <= few[0] + MAX_WORKER_MB
    assert many[1] <= few[1] + 3


def test_a_stream_of_ten_times_the_samples(tmp_path: Path) -> None:
    # Of the rest nothing is read here.
    members = {name: strangers.MEMBERS[name] for name in ("json", "tokens.npy", "scores.npy")}
    for shards in (3, 30):
        folder = tmp_path / str(shards)
        for number in range(shards):
            with tar.write_shard(str(folder / f"train-{number:06d}.tar")) as (writer, _):
                for sample in range(300):
                    writer.add(f"a-train-{number:03d}{sample:04d}-change", members)
    done = subprocess.run(
        [sys.executable, "-c", STREAM, f"{tmp_path}/3/*.tar", f"{tmp_path}/30/*.tar"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    (few, small, files), (many, large, more_files) = (
        map(int, line.split()) for line in done.stdout.splitlines()
    )
    assert many == 10 * few == 9_000
    assert large - small < BYTES_A_SAMPLE * (many - few)
    assert more_files == files


def test_the_disk_that_a_job_asks_for(
    tmp_path: Path, synth_root: Path, prepare: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    """The estimate is enough for rendered scenes, and not many times too much."""
    arguments = (
        "interpolate", "synth", "--root", synth_root, "--out", tmp_path / "out",
        "--set", "interpolate.method=crossfade", "--set", "image_size=96",
    )  # fmt: skip
    assert prepare(*arguments, "--dry-run").returncode == 0
    match = re.search(r"disk +about ([\d.]+) (\w?B)", capfd.readouterr().err)
    assert match is not None
    estimate = float(match[1]) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[match[2]]
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr
    written = sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    print({"estimate": estimate, "written": written})
    assert estimate / 4 <= written <= estimate * 1.05
