"""A model of how fast training shards are made: what a pair costs in each step, and what on a
cluster is the first to have enough.

`measured` takes the costs of this machine, `job_seconds` predicts jobs of it (`bench_job.py` holds
the two against each other), `on_gpus` goes on to GPUs, which were not measured: a GPU is its
arithmetic alone, at a speed that is assumed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from cc_prep import datasets, manifest, weights
from cc_prep.models import clip4idc, vqgan
from cc_prep.models.rife import RIFE
from cc_prep.steps.build import Build
from lib import jobs
from lib.reference import VIT_B_32

FRAMES, SIDE = 9, 224
PAIRS_OF_CLEVR_CHANGE = 79_606
# What a pair of CLEVR-Change reads and writes: two PNG files of 480×320; four keyframes, codes.
READ_MB, WRITTEN_MB = 0.4, 0.09
# A finished shard is all that the driver hears: pixels never go through Ray's object store.
SHARD, DRIVER_SECONDS_A_SHARD = 256, 0.05


@dataclass(frozen=True)
class Costs:
    """Seconds a pair in a worker of one thread. rest: reading, encoding, all but the networks."""

    interpolate: float
    score: float
    tokenize: float
    rest: float

    @property
    def total(self) -> float:
        """A pair from files to its sample."""
        return self.interpolate + self.score + self.tokenize + self.rest


def measured(root: Path, pairs: int) -> Costs:
    """The costs on one thread of this process, with the shipped weights, of pairs in `root`."""
    threads = [f"{step}.threads=1" for step in ("interpolate", "score", "tokenize")]
    settings = manifest.load(jobs.NAME, [jobs.LAYOUT, *threads], root=str(root))
    names = (settings.interpolate.weights, settings.score.weights, settings.tokenize.weights)
    digests = {file.name: file.sha256 for file in map(weights.locate, names)}
    work = Build(settings, digests, frozenset({"interpolate", "score"}), names[1], "cpu")
    assert work.interpolate is not None
    assert work.score is not None
    seconds: dict[str, float] = {}

    def watch(part: Any, method: str, name: str) -> None:
        own = getattr(part, method)

        def timed(*arguments: Any) -> Any:
            began = time.perf_counter()
            result = own(*arguments)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        setattr(part, method, timed)

    watch(work.interpolate.interpolator, "interpolate_batch", "interpolate")
    watch(work.score, "scorer", "score")
    watch(work, "tokenizer", "tokenize")
    all_pairs = [pair for split in settings.splits for pair in datasets.pairs(settings, split)]
    work(all_pairs[:1])
    seconds.clear()
    chosen = all_pairs[1 : pairs + 1]
    began = time.perf_counter()
    for pair in chosen:
        work([pair])
    rest = time.perf_counter() - began - sum(seconds.values())
    return Costs(**{name: total / len(chosen) for name, total in {**seconds, "rest": rest}.items()})


def job_seconds(costs: Costs, start: float, pairs: int, workers: int) -> float:
    """A job of `workers` with a core each. start: what such a job of no pairs takes."""
    return start + pairs * costs.total / workers


def tera_flop_a_pair() -> dict[str, float]:
    """10¹² operations a pair, full-size networks: 7 midpoints, 17 pairs of frames, 9 frames."""
    frame = torch.empty(1, 3, SIDE, SIDE, device="meta")
    sizes = VIT_B_32
    with torch.device("meta"):
        rife, codes = RIFE(32, False), vqgan.VQGAN(vqgan.Config())
        scorer = clip4idc.CLIP4IDC(sizes)
    with torch.no_grad():
        midpoint = _flop(lambda: rife._fine(frame, frame, *_flow(), (2, 1)))
        midpoint += _flop(lambda: rife._coarse(frame, frame, (8, 4), (SIDE, SIDE))[:2])
        frames = torch.empty(FRAMES, 3, sizes.resolution, sizes.resolution, device="meta")
        tokens = torch.empty(2 * FRAMES - 1, sizes.tokens, sizes.vision_width, device="meta")
        score = _flop(lambda: scorer.visual.encode_frames(frames))
        score += _flop(lambda: scorer.visual.encode_pairs(tokens, tokens))
        tokenize = FRAMES * _flop(lambda: codes.features(frame))
    return {"interpolate": 7 * midpoint, "score": score, "tokenize": tokenize}


def _flow() -> tuple[torch.Tensor, torch.Tensor]:
    flow = torch.empty(1, 4, SIDE, SIDE, device="meta")
    return flow, flow[:, :1]


def _flop(work: Any) -> float:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops() / 1e12


@dataclass(frozen=True)
class Cluster:
    """What a cluster is taken to have. All of it is assumed."""

    tera_flop_a_second: float = 50.0  # of a GPU in float32; TF32 is several times that
    storage_mb: float = 2000.0  # a second, in all, both ways
    network_mb: float = 1250.0  # a second, of each node of 8 GPUs


def on_gpus(rest: float, gpus: int, cluster: Cluster, overlaps: bool = True) -> dict[str, float]:
    """Pairs a second that each part could do with a worker a GPU; the least is what the job does.

    rest: seconds of a processor that reading and encoding a pair take. overlaps: whether the worker
    does that while its GPU computes (`bench_overlap.py` measures how nearly); otherwise the two
    take turns.
    """
    arithmetic = sum(tera_flop_a_pair().values()) / cluster.tera_flop_a_second
    bytes_a_pair = READ_MB + WRITTEN_MB
    return {
        "workers": gpus / (max(arithmetic, rest) if overlaps else arithmetic + rest),
        "GPUs": gpus / arithmetic,
        "storage": cluster.storage_mb / bytes_a_pair,
        "network": cluster.network_mb * max(1, gpus // 8) / bytes_a_pair,
        "driver": SHARD / DRIVER_SECONDS_A_SHARD,
    }


def seconds_of_clevr_change(rate: float, workers: int) -> float:
    """How long all of CLEVR-Change takes at a rate of all workers, who each take whole shards."""
    rounds = math.ceil(math.ceil(PAIRS_OF_CLEVR_CHANGE / SHARD) / workers)
    return rounds * SHARD * workers / rate
