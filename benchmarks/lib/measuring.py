"""Code that the programs here share: interleaved timings, medians, memory, a JSON report."""

from __future__ import annotations

import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from cc_prep.devices import keep_freed_memory

FOLDER = Path("out/bench")


def turns(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each variant; they take turns, so that a busy machine slows all alike."""
    for way in ways.values():
        way()  # what is only done once, caches and compilations, is not what is claimed
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(durations) for name, durations in seconds.items()}


@dataclass(frozen=True)
class Run:
    """Figures of a variant that ran in a process of its own: median seconds, peak memory of that
    process in MB, and the last return value."""

    seconds: float
    peak: float
    result: Any


def turns_apart(
    ways: Mapping[str, Callable[[], object]], repeats: int, plain_allocator: Collection[str] = ()
) -> dict[str, Run]:
    """`turns` with a process for each variant, for variants that change the whole process.

    A way is a function of a module. Its first call sets up, and is not counted. Every process keeps
    freed memory, as our workers and trainings do, so that no ratio is that of the allocators; those
    of the ways named in `plain_allocator` have the C library's as it is.
    """
    fresh = multiprocessing.get_context("spawn")
    pools = {
        name: ProcessPoolExecutor(
            1,
            mp_context=fresh,
            initializer=None if name in plain_allocator else keep_freed_memory,
        )
        for name in ways
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results: dict[str, Any] = {}
    for number in range(repeats + 1):
        for name, way in ways.items():
            duration, results[name] = pools[name].submit(_timed, way).result()
            seconds[name] += [duration] if number else []
    peaks = {name: pool.submit(peak).result() for name, pool in pools.items()}
    for pool in pools.values():
        pool.shutdown()
    return {
        name: Run(statistics.median(seconds[name]), peaks[name], results[name]) for name in ways
    }


def _timed(way: Callable[[], object]) -> tuple[float, object]:
    began = time.perf_counter()
    result = way()
    return time.perf_counter() - began, result


def peak(pid: int | str = "self") -> float:
    """Peak memory in MB of a process; 0 once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


@contextmanager
def watching(command: str) -> Iterator[Callable[[], float]]:
    """Yields a function that returns the largest peak memory in MB of our child processes, of those
    that ran since the block began and whose command line starts with `command`.
    """
    over, largest = threading.Event(), [0.0]

    def watch() -> None:
        while not over.wait(0.2):
            largest[0] = max(largest[0], *(peak(pid) for pid in _running(command)), 0.0)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: largest[0]
    finally:
        over.set()
        thread.join()


def _running(command: str) -> Iterator[int]:
    """Ids of our child processes, at any depth, whose command line starts with `command`."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it is gone
            if " ".join(process.cmdline()).startswith(command):
                yield process.pid


def report(name: str, figures: Mapping[str, Any]) -> None:
    """Prints the figures as a JSON line and writes them to out/bench."""
    text = json.dumps({"benchmark": name, **figures})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    print(text)
