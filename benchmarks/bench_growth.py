"""How cost grows: interpolation, scoring, tokenising, the fused job and the training stream at ×1,
×4 and ×16 pairs. Time should be linear in pairs, and memory flat; the picture shows both.

    python benchmarks/bench_growth.py [--repeats 3] [--picture out/bench/growth.png]

The sizes take turns, each time in a process of its own, of two threads; medians. Networks are
full-size with random weights, RIFE and all of the fused job the shipped ones. Set-up and a worker's
start are not counted. Memory is the peak of that process, of the fused job its worker's.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import bench_stream
import click
import matplotlib
import numpy as np
import torch
from lib.jobs import job, ready
from lib.measuring import peak, report, watching
from lib.reference import VIT_B_32

from cc_prep import weights
from cc_prep.devices import keep_freed_memory
from cc_prep.manifest import Interpolate
from cc_prep.models import clip4idc, vqgan
from cc_prep.steps.interpolate import RifeInterpolator
from cc_prep.steps.score import FrameScorer
from cc_prep.steps.tokenization import Tokenizer
from cc_train.data import shard_index

STEPS, THREADS, FRAMES = (1, 4, 16), 2, 9
Cost = tuple[float, float]  # seconds, MB
Figures = dict[str, list[dict[str, float]]]


@click.command()
@click.option("--repeats", default=3, show_default=True)
@click.option("--picture", default="out/bench/growth.png", show_default=True)
def main(repeats: int, picture: str) -> None:
    """Measures seconds a pair and MB."""
    sizes: dict[Callable[[int], Cost], int] = {
        interpolation: 4, scoring: 2, tokenising: 1, fused_job: 8, stream: 500
    }  # fmt: skip
    figures: Figures = {}
    for way, smallest in sizes.items():
        name = way.__name__.replace("_", " ")
        costs: dict[int, list[Cost]] = {times * smallest: [] for times in STEPS}
        for _ in range(repeats):
            for pairs, runs in costs.items():
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    runs.append(pool.submit(way, pairs).result())
        figures[name] = [row(pairs, runs) for pairs, runs in costs.items()]
        for entry in figures[name]:
            milliseconds = 1e3 * entry["seconds"] / entry["pairs"]
            print(f"{name}, {entry['pairs']} pairs: {milliseconds:.1f} ms a pair, "
                  f"{entry['peak_mb']:,.0f} MB", flush=True)  # fmt: skip
    report("growth", figures)
    draw(figures, picture)


def row(pairs: int, runs: Sequence[Cost]) -> dict[str, float]:
    """What is reported of one size."""
    seconds, memory = (statistics.median(part) for part in zip(*runs, strict=True))
    return {"pairs": pairs, "seconds": seconds, "peak_mb": memory}


def interpolation(pairs: int) -> Cost:
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    tensors = weights.read_tensors(weights.locate("rife-v4.0").path)
    network = RifeInterpolator(tensors, Interpolate())
    return timed(lambda images: network.interpolate_batch(images[:1], images[1:2], 3), pairs)


def scoring(pairs: int) -> Cost:
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    scorer = FrameScorer(clip4idc.CLIP4IDC(VIT_B_32))
    return timed(lambda images: scorer(images, ["the red cube is gone"]), pairs)


def tokenising(pairs: int) -> Cost:
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    return timed(Tokenizer(vqgan.VQGAN(vqgan.Config())), pairs)


def fused_job(pairs: int) -> Cost:
    """What so many pairs cost beyond a job of one, which is the worker's start."""
    with ready(pairs + 1) as folder, watching("ray::MapWorker") as memory:
        _, of_one, of_all = (
            job(folder, name, "build", "--workers", "1", "--limit", str(count))
            for name, count in (("first", 1), ("one", 1), ("all", pairs + 1))
        )
        return of_all - of_one, memory()


def stream(pairs: int) -> Cost:
    with tempfile.TemporaryDirectory() as name:
        bench_stream.write(Path(name), pairs)
        entries = shard_index.read([f"{name}/*.tar"])
        loader = bench_stream.stream_of(entries, bench_stream.counted)
        began = time.perf_counter()
        for number in range(pairs // bench_stream.BATCH):
            loader(number)
        return time.perf_counter() - began, peak()


def timed(work: Callable[[np.ndarray], object], pairs: int) -> Cost:
    """Cost of that many sequences, each of its own, after one that is not counted."""
    rng = np.random.default_rng(0)
    seconds = 0.0
    for number in range(pairs + 1):
        images = rng.integers(0, 256, (FRAMES, 224, 224, 3), np.uint8)
        began = time.perf_counter()
        work(images)
        seconds += (time.perf_counter() - began) if number else 0
    return seconds, peak()


def draw(figures: Figures, picture: str) -> None:
    """Cost a pair and memory, each against the first size."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
    for panel, title, measure in (
        (panels[0], "time a pair", lambda row: row["seconds"] / row["pairs"]),
        (panels[1], "peak memory", lambda row: row["peak_mb"]),
    ):
        for name, rows in figures.items():
            values = [measure(row) / measure(rows[0]) for row in rows]
            panel.plot(STEPS, values, marker="o", label=name)
        panel.set(title=title, xscale="log", ylim=(0, 2), xlabel="pairs", xticks=STEPS)
        panel.set_xticks(STEPS, [f"×{times}" for times in STEPS], minor=False)
        panel.minorticks_off()
        panel.axhline(1, color="grey", linewidth=0.5)
    panels[0].set_ylabel("against ×1")
    panels[1].legend(loc="lower right", fontsize=8)
    figure.savefig(picture, dpi=100)


if __name__ == "__main__":
    main()
