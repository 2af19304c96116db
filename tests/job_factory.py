"""Steps that make errors visible, and jobs of them, with real Ray and without."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cc_prep.devices import keep_freed_memory
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.records import FrameScores, ImagePair
from cc_prep.steps.base import MakeStep, Members
from pipelines.shards import PlannedShard, of_pairs

if TYPE_CHECKING:  # workers of Ray import this module, and need neither
    import pytest

    from pipelines import job, timing
    from pipelines.cluster.pool import Pool
    from pipelines.shard_worker import RunInfo
    from pipelines.state.journal import Done

CHANGE_CAPTIONS = ("the ball moved", "a ball is elsewhere")


def pair(number: int, split: str = "train") -> ImagePair:
    """Pair i of a data set that exists nowhere."""
    return ImagePair("fake", split, f"{number:04d}", "change", "b.png", "a.png", CHANGE_CAPTIONS)


def shards(pairs: int, per_shard: int, split: str = "train") -> list[PlannedShard]:
    all_pairs = [pair(i, split) for i in range(pairs)]
    starts = range(0, pairs, per_shard)
    return [of_pairs(split, s // per_shard, all_pairs[s : s + per_shard]) for s in starts]


class BrokenStep:
    """A step that cannot even start: its weights are missing, or take the process along."""

    def __init__(self, how: str, device: str) -> None:
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        raise UserError("no weights on this node", "Put them there")


class NumberStep:
    """A sample that says its pair's number, and faults at pairs that the test names.

    kills: pairs that SIGKILL the process, for ever. kills_once: only the first time, which a file
    in `folder` remembers. rejects, fails: pairs that are rejected, that raise. allocates: bytes
    that a pair asks for, little by little where they can be had. device: it computes nothing, but a
    file in `folder` tells which one it was made for.
    """

    def __init__(
        self,
        folder: str,
        batch: int = 1,
        kills: Sequence[int] = (),
        kills_once: Sequence[int] = (),
        rejects: Sequence[int] = (),
        fails: Sequence[int] = (),
        most_at_once: int = 10**9,
        seconds: float = 0.0,
        allocates: Mapping[int, int] | None = None,
        device: str = "",
    ) -> None:
        if device:
            Path(folder, f"made-for-{device}").touch()
        self.folder, self.pairs_per_batch, self.seconds = folder, batch, seconds
        self.kills, self.kills_once = set(kills), set(kills_once)
        self.rejects, self.fails, self.most_at_once = set(rejects), set(fails), most_at_once
        self.allocates = dict(allocates or {})
        self.freed = 0

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        time.sleep(self.seconds * len(pairs))
        if len(pairs) > self.most_at_once:
            raise MemoryError(f"{len(pairs)} pairs do not fit")
        numbers = [int(p.id) for p in pairs]
        for number in numbers:
            if number in self.kills or (number in self.kills_once and self._first_time(number)):
                os.kill(os.getpid(), signal.SIGKILL)
            self._allocate(self.allocates.get(number, 0))
            if number in self.fails:
                raise ZeroDivisionError(f"pair {number}")
        return [self._one(number) for number in numbers]

    def free_memory(self) -> None:
        self.freed += 1

    def check_device(self) -> None:
        pass

    def _one(self, number: int) -> Members | RejectedPair:
        if number in self.rejects:
            return RejectedPair(Reason.UNREADABLE_IMAGE, f"number {number}")
        return {"json": f'{{"number": {number}}}'.encode()}

    def _allocate(self, size: int) -> None:
        if size > 2**40:
            np.ones(size, np.uint8)
        held = []
        for _ in range(0, size, 2**26):
            held.append(np.ones(2**26, np.uint8))
            time.sleep(0.01)

    def _first_time(self, number: int) -> bool:
        mark = Path(self.folder, f"killed-{number}")
        if mark.exists():
            return False
        mark.touch()
        return True


def number_step(settings: Mapping[str, Any], device: str) -> NumberStep:
    """A `NumberStep` with these settings, as a worker makes it on a device."""
    return NumberStep(**settings, device=device)


class StepOnGpu(NumberStep):
    """A `NumberStep` on what Ray counts as GPUs. broken: numbers of those that break.

    Such a GPU makes the first pairs that it gets, which a file in `folder` tells, and fails at
    every call from then on. On a GPU that works it waits until the broken one has failed in a
    worker and in its successor. Otherwise it could do all the work before that, and nobody would
    notice the broken one.
    """

    def __init__(self, folder: str, broken: Sequence[str], device: str) -> None:
        super().__init__(folder, batch=2, seconds=0.05, device=device)
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
        self.breaks = gpu in broken
        self.broken = broken
        self.worked = Path(folder, f"worked-on-{gpu}")

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        deadline = time.monotonic() + 120
        while self.broken and not self.breaks and time.monotonic() < deadline:
            if len(list(Path(self.folder).glob("failed-in-*"))) > 1:
                break
            time.sleep(0.05)
        samples = super().__call__(pairs)
        self.check_device()
        self.worked.touch()
        return samples

    def check_device(self) -> None:
        if self.breaks and self.worked.exists():
            Path(self.folder, f"failed-in-{os.getpid()}").touch()
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


class CountsPageFaults:
    """Allocates and frees 64 MB ten times; a row tells how many pages were new."""

    def __init__(self) -> None:
        keep_freed_memory()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import torch  # which no other worker needs

        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.ones(2**24)  # 16,384 pages; numpy would ask for huge ones
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        return {"faults": np.array([faults])}


def frame_scores(captions: int, frames: int = 5) -> FrameScores:
    """Random similarities of some captions to some frames, and of frames to both ends."""
    rng = np.random.default_rng(captions)
    draw = [rng.normal(size=(captions, frames)).astype(np.float32) for _ in range(2)]
    likeness = [rng.normal(size=frames).astype(np.float32) for _ in range(2)]
    return FrameScores(tuple(f"caption {i} ü" for i in range(captions)), *draw, *likeness)


def work_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray: the shards are made one after the other by one worker."""
    from pipelines import engine, timing
    from pipelines.cluster.pool import Resources
    from pipelines.shard_worker import ShardWorker

    def run(
        shards: list[PlannedShard], make_step: MakeStep, run_info: RunInfo, pool: Pool
    ) -> Iterator[Done]:
        worker = ShardWorker(make_step, run_info)
        for shard in shards:
            yield worker.run(shard)

    def try_out(
        shards: Sequence[PlannedShard], make_step: MakeStep, pool: Pool
    ) -> tuple[list[timing.Trial], float]:
        try:
            return [timing.try_out(shards[0], make_step, pool.device)], 0.0
        except ZeroDivisionError as error:
            raise engine._cause(error) from None

    monkeypatch.setattr(engine, "start", lambda: (Resources(2, 0),))
    monkeypatch.setattr(engine, "stop", lambda: None)
    monkeypatch.setattr(engine, "run", run)
    monkeypatch.setattr(engine, "try_out", try_out)


def spec(tmp_path: Path, name: str = "out", pairs: int = 20, **faults: Any) -> job.JobSpec:
    """A job on pairs that exist nowhere, with these faults."""
    from cc_prep.formats import sequences
    from pipelines import job

    return job.JobSpec(
        format=sequences.FORMAT,
        folder=str(tmp_path / name),
        shards=shards(pairs, 5),
        make_step=partial(number_step, {"folder": str(tmp_path), **faults}),
        settings={"a": 1},
        weights={},
        threads=1,
        bytes_a_pair=100,
        memory="",
    )


def run(spec: job.JobSpec, **options: Any) -> job.Summary:
    """Runs it with two workers."""
    from pipelines import job
    from pipelines.cluster.session import messages

    summary = job.run(spec, job.Options(workers=2, **options), messages())
    assert summary is not None
    return summary
