"""Jobs of `cc-prep` in this process, on a Ray that is there already: what Ray's start costs is
measured by none."""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import ray

from cc_prep.datasets import samples
from pipelines.cli import cli

CORES = 2


@contextmanager
def ready() -> Iterator[Path]:
    """A folder with real videos, and Ray on two cores."""
    ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as name:
            samples.fetch(f"{name}/videos")
            yield Path(name)
    finally:
        ray.shutdown()


def job(folder: Path, out: str, step: str, *given: str) -> float:
    """Seconds of a step of `cc-prep` on pairs of the videos; what it wrote stays in folder/out."""
    places = ("--root", f"{folder}/videos", "--out", f"{folder}/{out}")
    settings = ("--set", "video.stride=3", "--set", "shards.pairs_per_shard=8")
    began = time.perf_counter()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        cli.main([step, "video", *places, *settings, *given], standalone_mode=False)
    return time.perf_counter() - began


def forget(folder: Path, out: str) -> None:
    """Removes what jobs wrote, so that the next one starts from nothing."""
    shutil.rmtree(folder / out, ignore_errors=True)
