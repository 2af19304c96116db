"""Interpolation, pairs a second: our worker against the public package's way of working.

The alternative is the package's own code on the same weights: one pair and one midpoint at a time,
padded to 128; it writes PNG files at OpenCV's default level. Both read the same rendered images,
and both write their output. Each has a process of its own and keeps freed memory. Also printed: the
share of our time outside the network (decoding, encoding, tar, journal), and the PSNR of both
against true frames, which must not be lower.

    python benchmarks/bench_interpolate.py [--repeats 7]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import click
import cv2
import numpy as np
import torch
from lib.frames import of_videos
from lib.measuring import report, turns_apart
from lib.package import Package

from cc_prep import datasets, manifest, weights
from cc_prep.formats import sequences
from cc_prep.inspect.quality import psnr
from cc_prep.manifest import Interpolate, Manifest
from cc_prep.records import ImagePair
from cc_prep.steps.interpolate import Interpolate as Step
from cc_prep.steps.interpolate import RifeInterpolator
from cc_prep.synth import dataset as synth
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import of_pairs
from pipelines.state.journal import State

PAIRS, THREADS = 12, 2


@click.command()
@click.option("--repeats", default=7, show_default=True)
def main(repeats: int) -> None:
    """Measures pairs a second."""
    with tempfile.TemporaryDirectory() as folder:
        for _ in synth.make(f"{folder}/data", PAIRS // 2, synth.Settings(seed=11)):
            pass
        ways: dict[str, Callable[[], object]] = {
            "ours": partial(ours, folder),
            "package": partial(package_way, folder),
        }
        runs = turns_apart(ways, repeats)
        rates = {name: PAIRS / run.seconds for name, run in runs.items()}
        figures = {**rates, "outside": runs["ours"].result, **quality(folder)}
    ratio = rates["ours"] / rates["package"]
    print(
        f"ours {rates['ours']:.2f} pairs/s, the package's way {rates['package']:.2f} pairs/s: "
        f"× {ratio:.2f}; outside the network {figures['outside']:.0%} of our time; "
        f"PSNR of video frames {figures['psnr']:.2f} dB, the package's "
        f"{figures['psnr_package']:.2f} dB"
    )
    report("interpolate", {"threads": THREADS, "ratio": ratio, **figures})


@cache
def parts(folder: str) -> tuple[Manifest, list[ImagePair]]:
    """What both are given."""
    torch.set_num_threads(THREADS)
    settings = manifest.load(
        "synth",
        root=f"{folder}/data",
        # The package knows no masks.
        overrides=(f"interpolate.threads={THREADS}", "interpolate.keep_truth=false"),
    )
    return settings, [p for split in settings.splits for p in datasets.pairs(settings, split)]


def ours(folder: str) -> float:
    """Interpolates as a worker does; the median share of its time outside the network so far."""
    worker, inside, outside = our_worker(folder)
    inside.clear()
    began = time.perf_counter()
    worker.run(of_pairs("train", 0, parts(folder)[1]))
    outside.append(1 - sum(inside) / (time.perf_counter() - began))
    return statistics.median(outside[1:] or outside)  # the first turn sets up


@cache
def our_worker(folder: str) -> tuple[ShardWorker, list[float], list[float]]:
    """A worker, seconds of its network's passes, and its shares outside them."""
    located = weights.locate("rife-v4.0")
    digests = {located.name: located.sha256}
    make_step = partial(Step, parts(folder)[0], digests)
    State(f"{folder}/out").write_run("bench")
    worker = ShardWorker(make_step, RunInfo(f"{folder}/out", "bench", sequences.FORMAT, "cpu"))
    return worker, timed(worker), []


def quality(folder: str) -> dict[str, float]:
    """Mean PSNR in dB of midpoints between video frames 4 apart, ours and the package's."""
    ours = RifeInterpolator(weights.read_tensors(weights.locate("rife-v4.0").path), Interpolate())
    package, psnrs = the_package(), []
    for frames in of_videos(folder, (224, 224)):
        for i in range(0, len(frames) - 4, 8):
            before, true, after = frames[i : i + 5 : 2]
            middle = ours.interpolate_batch(before[None], after[None], 1)[0, 1]
            psnrs.append([psnr(middle, true), psnr(package.middle(before, after), true)])
    mean, of_package = np.mean(psnrs, axis=0)
    return {"psnr": round(mean, 3), "psnr_package": round(of_package, 3)}


def timed(worker: ShardWorker) -> list[float]:
    """Seconds of each pass of the worker's network from now on."""
    interpolator = worker.step().interpolator  # type: ignore[attr-defined]
    passes, forward = [], interpolator.network.forward

    def measured(*images: torch.Tensor) -> torch.Tensor:
        began = time.perf_counter()
        result = forward(*images)
        passes.append(time.perf_counter() - began)
        return result

    interpolator.network.forward = measured
    return passes


def package_way(folder: str) -> None:
    """Pair by pair, midpoint by midpoint, a PNG file a frame."""
    settings, pairs = parts(folder)
    package = the_package()

    def read(name: str) -> np.ndarray:
        image = cv2.imread(str(Path(settings.root, name)))
        return cv2.resize(image, (224, 224))[..., ::-1].copy()

    def between(before: np.ndarray, after: np.ndarray, depth: int) -> list[np.ndarray]:
        if depth == 0:
            return []
        half = package.middle(before, after)
        return [*between(before, half, depth - 1), half, *between(half, after, depth - 1)]

    for number, pair in enumerate(pairs):
        before, after = read(pair.before), read(pair.after)
        for i, frame in enumerate([before, *between(before, after, 3), after]):
            cv2.imwrite(f"{folder}/{number:03d}_{i}.png", frame[..., ::-1])


the_package = cache(Package)


if __name__ == "__main__":
    main()
