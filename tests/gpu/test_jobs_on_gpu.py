"""Preparation on a GPU: a whole job as on a CPU, memory that does not suffice, a broken context."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from cc_prep.devices import is_broken_device
from cc_prep.errors import RejectedPair
from cc_prep.formats import provenance, training_shards
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.records import ImagePair
from cc_prep.steps.base import Members
from cc_prep.steps.tokenization import Tokenizer
from cc_prep.weights import networks
from pipelines import job
from tests import commands, job_factory
from tests.conftest import Command
from tests.gpu.test_networks_on_gpu import Row, frames

DEVICE = "gpu"
SETTINGS = ("image_size=64", "interpolate.depth=2", "shards.pairs_per_shard=6")


def build(cc_prep: Command, root: Path, out: Path, device: str) -> tuple[list[TrainingSample], int]:
    """The samples of a job with the default weights, and how many seconds it took."""
    options = [part for value in SETTINGS for part in ("--set", value)]
    began = time.monotonic()
    done = cc_prep("build", "synth", "--root", root, "--out", out, "--device", device, *options)
    assert done.returncode == 0, done.stderr
    shards = sorted((out / "shards").glob("*.tar"))
    samples = [sample for shard in shards for sample in training_shards.read(str(shard))]
    return samples, round(time.monotonic() - began)


def test_a_job_is_as_on_a_cpu(tmp_path: Path, synth_root: Path, cc_prep: Command, row: Row) -> None:
    """Keeps away: threads and batches of a GPU's worker that hand a pair another one's frames."""
    expected, _ = build(cc_prep, synth_root, tmp_path / "cpu", "cpu")
    samples, seconds = build(cc_prep, synth_root, tmp_path / "gpu", DEVICE)
    assert [sample.key for sample in samples] == [sample.key for sample in expected]
    pairs = list(zip(samples, expected, strict=True))
    same = float(np.mean([one.tokens == other.tokens for one, other in pairs]))
    apart = max(float(np.abs(one.scores - other.scores).max()) for one, other in pairs)
    assert same >= 0.99
    assert apart <= 0.05
    record = provenance.read(str(tmp_path / "gpu/shards"))
    assert record is not None
    models = {shard["gpu"] for shard in record["shards"].values()}
    assert models == {torch.cuda.get_device_name()}
    figure = f"{same:.2%}, {apart:.1e}; {seconds} s with Ray's start"
    row(f"job of {len(pairs)} pairs: tokens, scores", "99 % the same, 0.05", figure)


def test_frames_that_do_not_fit_together_go_apart(row: Row) -> None:
    """Keeps away: a pair of large photographs that is rejected, though each frame fits alone."""
    tokenizer = Tokenizer(networks.vqgan("vqgan-mini")[0], "cuda")
    images = np.concatenate([frames()] * 4)

    def peak(images: np.ndarray) -> tuple[np.ndarray, int]:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return tokenizer(images), torch.cuda.max_memory_reserved()

    (_, of_one), (expected, of_all) = peak(images[:1]), peak(images)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((of_one + of_all) / 2 / total)
    try:
        codes, taken = peak(images)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    same = float((codes == expected).mean())
    assert taken < of_all
    assert same >= 0.99
    figure = f"{same:.2%}; {taken / 2**20:.0f} of {of_all / 2**20:.0f} MB"
    row("VQGAN, half of the memory it wants", "99 % the same", figure)


class Poisoned(job_factory.NumberStep):
    """A `NumberStep` at one of whose pairs the GPU's context breaks, the first time."""

    def __init__(self, folder: str, number: int, device: str) -> None:
        super().__init__(folder, batch=2, device=device)
        self.number = number

    def __call__(self, pairs: Sequence[ImagePair]) -> list[Members | RejectedPair]:
        if self.number in [int(pair.id) for pair in pairs] and self._first_time(self.number):
            break_context()
        self.check_device()
        return super().__call__(pairs)

    def check_device(self) -> None:
        assert float(torch.ones(9, device="cuda").sum()) == 9


def break_context() -> None:
    """After this every call of CUDA in this process fails."""
    torch.zeros(4, device="cuda")[torch.tensor([1 << 20], device="cuda")].sum().item()


def test_a_broken_context_ends_its_worker_alone(tmp_path: Path, row: Row) -> None:
    """Keeps away: good pairs that are rejected in a process in which every call fails."""
    spec = job_factory.spec(tmp_path)
    object.__setattr__(spec, "make_step", partial(Poisoned, str(tmp_path), 7))
    with commands.one_ray(gpus=1):
        options, console = job.Options(workers=1, device="gpu"), Console(file=io.StringIO())
        summary = job.run(spec, options, console)
    assert summary is not None
    assert (tmp_path / "killed-7").exists()
    assert (summary.samples, summary.rejected) == (20, 0)
    row("job of 20 pairs, its context broken once", "no pair lost", "none")


def test_what_a_broken_context_says_is_known() -> None:
    """Keeps away: an error of the device that counts as the pair's own. In a process of its own."""
    run_in_a_process(says_so)


def says_so() -> None:
    for work in (break_context, lambda: torch.ones(1, device="cuda").sum().item()):
        with pytest.raises(RuntimeError) as caught:
            work()
        assert is_broken_device(caught.value), repr(caught.value)


def run_in_a_process(work: Callable[[], None]) -> None:
    process = torch.multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join(timeout=120)
    assert process.exitcode == 0
