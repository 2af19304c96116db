"""Jobs of `cc-prep` on pairs of PNG files, in this process, on a Ray that already runs, so that its
start is not measured."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import cv2
import ray

from cc_prep.devices import ONE_ARENA
from lib.frames import of_videos
from pipelines.cli import cli

CORES, GAP = 2, 8
# The data set that `make_pairs` writes, as a job's arguments and as a manifest's.
NAME, LAYOUT = "own", "layout=folders"
SIZE = (480, 320)  # of CLEVR-Change's images


@contextmanager
def ready(pairs: int) -> Iterator[Path]:
    """Yields a folder with so many pairs in `pairs`, while Ray runs on two cores."""
    os.environ.update(ONE_ARENA)  # as for a Ray that a job starts itself
    ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as name:
            make_pairs(Path(name), pairs)
            yield Path(name)
    finally:
        ray.shutdown()


def make_pairs(folder: Path, count: int) -> None:
    """Writes `count` pairs of frames, 8 apart, of three real videos: folder/pairs."""
    sides = [folder / "pairs" / side for side in ("before", "after")]
    for side in sides:
        side.mkdir(parents=True)
    number = 0
    for frames in of_videos(f"{folder}/videos", SIZE):
        for pair in zip(frames, frames[GAP:], strict=False):
            if number == count:
                return
            for side, frame in zip(sides, pair, strict=True):
                cv2.imwrite(f"{side}/{number:05}.png", frame[..., ::-1])
            number += 1
    assert number == count, f"the videos have {number} pairs only"


def job(folder: Path, out: str, step: str, *arguments: str) -> float:
    """Seconds of a step of `cc-prep` on the pairs; what it wrote stays in folder/out."""
    folders = ("--root", f"{folder}/pairs", "--out", f"{folder}/{out}")
    settings = ("--set", LAYOUT, "--set", "shards.pairs_per_shard=8")
    began = time.perf_counter()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        cli.main([step, NAME, *folders, *settings, *arguments], standalone_mode=False)
    return time.perf_counter() - began


def forget(folder: Path, out: str) -> None:
    """Removes what jobs wrote, so that the next one starts from nothing."""
    shutil.rmtree(folder / out, ignore_errors=True)
