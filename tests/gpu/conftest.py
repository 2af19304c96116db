"""Skips all tests here without CUDA, but for `make gpu-smoke`, which then fails. Prints what they
measured as a table for the docs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

ROWS = pytest.StashKey[list[tuple[str, str, str]]]()
Timed = Callable[[Callable[[], object]], float]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    if torch.cuda.is_available():
        return
    if os.environ.get("GPU_SMOKE"):
        pytest.exit("torch finds no GPU: is there a driver, and has torch CUDA?", returncode=1)
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="torch finds no GPU"))


@pytest.fixture
def row(request: pytest.FixtureRequest) -> Callable[[str, str, str], None]:
    """Adds a row to the table: what, the tolerance it meets, the figure."""
    rows = request.config.stash.setdefault(ROWS, [])
    return lambda what, tolerance, figure: rows.append((what, tolerance, figure))


@pytest.fixture
def seconds() -> Timed:
    """How long work takes on the GPU, the median of five, after one for the warm-up."""

    def measure(work: Callable[[], object]) -> float:
        times = []
        for _ in range(6):
            torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return sorted(times[1:])[2]

    return measure


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    write = terminalreporter.write_line
    write(f"\nOn one {torch.cuda.get_device_name()}, torch {torch.__version__}:\n")
    for line in (("what", "tolerance", "figure"), ("---",) * 3, *rows):
        write(f"| {' | '.join(line)} |")
