"""How busy a device is whose worker reads and encodes images meanwhile, and one after the other.

    python benchmarks/bench_overlap.py [--pairs 256] [--repeats 3]

A stand-in takes the network's place: it waits for a given time a pair and does not use the
processor, like a GPU. Reading and encoding are those of `cc-prep interpolate`, of rendered pairs;
what they take is measured first, and the stand-in takes 1.5 times as long, so that they are two
thirds of it. The alternative is the same worker without threads. Both must write the same bytes.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import click
import numpy as np
from lib.measuring import report

from cc_prep import datasets, manifest
from cc_prep.formats import sequences
from cc_prep.records import FrameSequence, ImagePair
from cc_prep.steps.interpolate import Interpolate
from cc_prep.synth import dataset
from pipelines.shard_worker import RunInfo, ShardWorker
from pipelines.shards import of_pairs
from pipelines.state.journal import State

SIZE, FRAMES, PAIRS_PER_BATCH = 224, 5, 8


class OnStandIn(Interpolate):
    """Repeats an image, and takes its time for it. busy: how long."""

    seconds_a_pair = 0.0
    busy = 0.0

    def compute(self, pairs: Sequence[ImagePair], inputs: Sequence[Any]) -> list[Any]:
        """Sequences of two images, which the stand-in takes its time for."""
        began = time.perf_counter()
        computed: list[Any] = [
            FrameSequence(pair, np.stack([read.before] * (FRAMES - 1) + [read.after]))
            for pair, read in zip(pairs, inputs, strict=True)
        ]
        time.sleep(max(0.0, began + self.seconds_a_pair * len(pairs) - time.perf_counter()))
        self.busy += time.perf_counter() - began
        return computed


def make_step(root: str) -> OnStandIn:
    overrides = ["interpolate.method=crossfade", "interpolate.depth=2", f"image_size={SIZE}"]
    overrides += [f"interpolate.pairs_per_batch={PAIRS_PER_BATCH}"]
    return OnStandIn(manifest.load("synth", overrides, root), {}, "cpu")


def work(step: OnStandIn, device: str, pairs: Sequence[ImagePair]) -> tuple[float, float, str]:
    """Seconds of a worker with one shard, those of the device, and the shard's digest."""
    with tempfile.TemporaryDirectory() as folder:
        State(folder).write_run("bench")
        run_info = RunInfo(folder, "bench", sequences.FORMAT, device)
        worker = ShardWorker(lambda device: step, run_info)
        worker.checked, step.busy = True, 0.0
        began = time.perf_counter()
        done = worker.run(of_pairs("train", 0, pairs))
        return time.perf_counter() - began, step.busy, done.sha256


@click.command()
@click.option("--pairs", default=256, show_default=True)
@click.option("--repeats", default=3, show_default=True)
def main(pairs: int, repeats: int) -> None:
    """Measures the part of the time in which the device is busy."""
    with tempfile.TemporaryDirectory() as root:
        settings = dataset.Settings(seed=1, size=SIZE, samples=4)
        scenes = len(list(dataset.make(root, max(4, pairs // 8), settings)))
        step = make_step(root)
        rendered = [
            pair for split in step.manifest.splits for pair in datasets.pairs(step.manifest, split)
        ]
        chosen = [copy_of(rendered[i % len(rendered)], i) for i in range(pairs)]
        print(f"{scenes} scenes, {pairs} pairs of {SIZE}×{SIZE}")
        work(step, "cpu", chosen)
        runs = [work(step, "cpu", chosen) for _ in range(repeats)]
        alone = statistics.median(seconds - busy for seconds, busy, _ in runs) / pairs
        step.seconds_a_pair = 1.5 * alone
        shares: dict[str, list[float]] = {"cpu": [], "cuda": []}
        digests = {digest for _, _, digest in runs}
        for _ in range(repeats):
            for device, share in shares.items():
                seconds, busy, digest = work(step, device, chosen)
                share.append(busy / seconds)
                digests.add(digest)
        assert len(digests) == 1
    in_turn, overlapped = (statistics.median(share) for share in shares.values())
    print(
        f"reading and encoding {1000 * alone:.1f} ms a pair, the device {1500 * alone:.1f}: busy "
        f"{100 * overlapped:.0f} % overlapped, {100 * in_turn:.0f} % one after the other: "
        f"× {overlapped / in_turn:.2f}; the same bytes"
    )
    report("overlap", {"milliseconds": 1000 * alone, "overlapped": overlapped, "in_turn": in_turn,
                       "ratio": overlapped / in_turn, "pairs": pairs})  # fmt: skip


def copy_of(pair: ImagePair, number: int) -> ImagePair:
    return ImagePair(pair.dataset, pair.split, str(number), pair.kind, pair.before, pair.after)


if __name__ == "__main__":
    main()
