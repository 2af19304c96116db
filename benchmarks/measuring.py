"""What the programs here share: ways that take turns, medians, a JSON file each."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

FOLDER = Path("out/bench")


def options(command: Callable[..., None]) -> Callable[..., None]:
    """`--threads` and `--repeats` of a program that measures networks."""
    command = click.option("--threads", default=2, show_default=True)(command)
    return click.option("--repeats", default=5, show_default=True)(command)


def turns(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each way; they take turns, so that a busy machine hits all alike."""
    for way in ways.values():
        way()  # what is only done once, caches and compilations, is not what is claimed
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in seconds.items()}


def report(name: str, found: Mapping[str, Any]) -> None:
    """Prints the figures as a JSON line and writes them to out/bench."""
    text = json.dumps({"benchmark": name, **found})
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(text + "\n")
    print(text)
