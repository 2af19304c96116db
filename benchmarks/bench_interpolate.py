"""Interpolation, pairs a second: our worker against the public package's way of working.

The alternative is the package's own code on the same weights: one pair and one midpoint at a time,
padded to 128; it writes PNG files at OpenCV's default level. Both read the same rendered images,
and both write their output. Also printed: the share of our time outside the network (decoding,
encoding, tar, journal), and the PSNR of both against true frames, which must not be lower.

    python benchmarks/bench_interpolate.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from frames import of_videos
from measuring import report
from package import Package

from cc_prep import datasets, manifest, weights
from cc_prep.interpolation import RifeInterpolator
from cc_prep.manifest import Interpolate, Manifest
from cc_prep.quality import psnr
from cc_prep.records import ImagePair
from cc_prep.synth import dataset as synth
from pipelines import actors
from pipelines.plan import ShardPlan
from pipelines.shard_worker import Job, ShardWorker

PAIRS, ROUNDS = 12, 7


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for _ in synth.make(f"{folder}/data", PAIRS // 2, synth.Settings(seed=11)):
            pass
        settings = manifest.load("synth", root=f"{folder}/data")
        pairs = [p for split in settings.splits for p in datasets.pairs(settings, split)]
        torch.set_num_threads(settings.interpolate.threads)
        found = {**measure(settings, pairs, folder), **quality(folder)}
    print(
        f"ours {found['ours']:.2f} pairs/s, the package's way {found['package']:.2f} pairs/s: "
        f"× {found['ratio']:.2f}; outside the network {found['outside']:.0%} of our time; "
        f"PSNR of video frames {found['psnr']:.2f} dB, the package's {found['psnr_package']:.2f} dB"
    )
    report("interpolate", {"threads": settings.interpolate.threads, **found})


def measure(settings: Manifest, pairs: list[ImagePair], folder: str) -> dict[str, float]:
    """Medians over rounds in which the two take turns, so that a busy machine hits both."""
    located = weights.locate("rife-v4.0")
    make_step = partial(actors.Interpolate, settings, "cpu", {located.name: located.sha256})
    worker = ShardWorker(make_step, Job(f"{folder}/out", "bench"))
    inside = timed(worker)
    plain = Package()
    shard = ShardPlan("train", 0, tuple(pairs))
    worker.run(shard)
    package_way(plain, settings.root, pairs[:2], folder)
    ours, theirs, outside = [], [], []
    for _ in range(ROUNDS):
        inside.clear()
        began = time.perf_counter()
        worker.run(shard)
        took = time.perf_counter() - began
        ours.append(len(pairs) / took)
        outside.append(1 - sum(inside) / took)
        began = time.perf_counter()
        package_way(plain, settings.root, pairs, folder)
        theirs.append(len(pairs) / (time.perf_counter() - began))
    return {
        "ours": round(statistics.median(ours), 3),
        "package": round(statistics.median(theirs), 3),
        "ratio": round(statistics.median(a / b for a, b in zip(ours, theirs, strict=True)), 3),
        "outside": round(statistics.median(outside), 3),
    }


def quality(folder: str) -> dict[str, float]:
    """Mean PSNR in dB of midpoints between video frames 4 apart, ours and the package's."""
    ours = RifeInterpolator(weights.read_tensors(weights.locate("rife-v4.0").path), Interpolate())
    package, found = Package(), []
    for frames in of_videos(folder, (224, 224)):
        for i in range(0, len(frames) - 4, 8):
            before, true, after = frames[i : i + 5 : 2]
            made = ours.sequence(before[None], after[None], 1)[0, 1]
            found.append([psnr(made, true), psnr(package.middle(before, after), true)])
    mean, of_package = np.mean(found, axis=0)
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


def package_way(package: Package, root: str, pairs: list[ImagePair], folder: str) -> None:
    """Pair by pair, midpoint by midpoint, a PNG file a frame."""

    def read(name: str) -> np.ndarray:
        return cv2.resize(cv2.imread(str(Path(root, name))), (224, 224))[..., ::-1].copy()

    def between(before: np.ndarray, after: np.ndarray, depth: int) -> list[np.ndarray]:
        if depth == 0:
            return []
        half = package.middle(before, after)
        return [*between(before, half, depth - 1), half, *between(half, after, depth - 1)]

    for number, pair in enumerate(pairs):
        before, after = read(pair.before), read(pair.after)
        for i, frame in enumerate([before, *between(before, after, 3), after]):
            cv2.imwrite(f"{folder}/{number:03d}_{i}.png", frame[..., ::-1])


if __name__ == "__main__":
    main()
