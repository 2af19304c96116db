"""What a job and a training cost before they do anything: processor seconds of all processes.

    python benchmarks/bench_job_start.py [--repeats 5]

A job of one pair is compared with Ray Data alone, which hands one row to a function that returns
it; the imports and the first step of a training with `import torch`. The programs take turns;
medians. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import click
import psutil
from lib.jobs import LAYOUT, NAME, make_pairs
from lib.measuring import report

ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER of <sys/prctl.h>
PATIENCE = 20.0  # seconds for what outlives a command: Ray's agents end by themselves
RAY_DATA = """
import logging
import ray
from ray.data import ActorPoolStrategy, DataContext

class Nothing:
    def __call__(self, rows):
        return rows

ray.init("local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
         object_store_memory=128 * 2**20)
rows = ray.data.from_items([{"row": 1}], override_num_blocks=1)
pool = ActorPoolStrategy(size=1)
assert len(list(rows.map_batches(Nothing, batch_size=1, compute=pool, num_cpus=1).iter_rows())) == 1
ray.shutdown()
"""
TRAINING = """
import torch
from cc_train import start, systems
from cc_train.text import words_of
from cc_train.training import optim

systems.recipe("stage1"), systems.recipe("stage2")
words_of("The small red cube, left-most, is gone. Nothing else has changed.")
weight = torch.nn.Parameter(torch.ones(2))
optimiser = optim.build_optimizer([{"params": [weight]}], 0.1, (0.9, 0.99))
weight.sum().backward()
optimiser.step()
"""


@click.command()
@click.option("--repeats", default=5, show_default=True)
def main(repeats: int) -> None:
    """Measures processor seconds."""
    if ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0):
        raise OSError("this kernel does not hand orphans to a process")
    # Threads that spin while they wait are no part of a start.
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    # Nor is compiling our source, which a user's Python does once, and each time where this is set.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as name:
        make_pairs(Path(name), 1)
        programs = {
            "job, crossfade": partial(job, name, "crossfade"),
            "job, rife": partial(job, name, "rife"),
            "Ray Data alone": partial(processor_seconds, sys.executable, "-c", RAY_DATA),
            "training": partial(processor_seconds, sys.executable, "-c", TRAINING),
            "import torch": partial(processor_seconds, sys.executable, "-c", "import torch"),
        }
        rounds = [
            {program: measure() for program, measure in programs.items()} for _ in range(repeats)
        ]
    seconds = {
        program: statistics.median(measured[program] for measured in rounds) for program in programs
    }
    for program, median in seconds.items():
        print(f"{median:6.2f} s  {program}")
    ratios = {
        program: seconds[program] / seconds[other]
        for program, other in (
            ("job, crossfade", "Ray Data alone"),
            ("job, rife", "Ray Data alone"),
            ("training", "import torch"),
        )
    }
    print(", ".join(f"{program}: × {ratio:.2f}" for program, ratio in ratios.items()))
    report("job_start", {**seconds, "ratios": ratios})


def job(folder: str, method: str) -> float:
    """Seconds of `cc-prep interpolate` of one pair of 480 × 320 px at 224 px, from nothing."""
    with tempfile.TemporaryDirectory() as out:
        return processor_seconds(
            *(str(Path(sys.executable).parent / "cc-prep"), "interpolate", NAME),
            *("--root", f"{folder}/pairs", "--out", out, "--workers", "1"),
            *("--set", LAYOUT, "--set", f"interpolate.method={method}"),
        )


def processor_seconds(*command: str) -> float:
    """CPU seconds of the command and of all processes that it started, also those that outlive it.

    They are looked at again and again, since Ray's node manager waits for none of its workers, and
    so the kernel adds up their times nowhere.
    """
    own, seconds = psutil.Process(), dict[tuple[int, float], float]()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = None
    while deadline is None or (own.children() and time.monotonic() < deadline):
        for child in own.children(recursive=True):
            with suppress(psutil.Error):  # it has ended meanwhile
                times = child.cpu_times()
                seconds[child.pid, child.create_time()] = times.user + times.system
                if child.status() == psutil.STATUS_ZOMBIE and child.pid != process.pid:
                    with suppress(ChildProcessError):  # not an orphan
                        os.waitpid(child.pid, os.WNOHANG)
        time.sleep(0.03)
        if deadline is None and process.poll() is not None:
            deadline = time.monotonic() + PATIENCE
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    for child in own.children(recursive=True):
        child.kill()
    return sum(seconds.values())


if __name__ == "__main__":
    main()
