"""The same bytes on other machines: workers, cores, threads, locale, time zone, hashes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import training_shards
from tests import small_weights
from tests.behaviour.test_build_is_exact import digests
from tests.conftest import Command
from tests.faults import processes

ELSEWHERE = {
    "OMP_NUM_THREADS": "7", "TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8",
    "PYTHONHASHSEED": "12345", "PYTHONUTF8": "0",
}  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> list[str]:
    return small_weights.build_options(tmp_path_factory.mktemp("weights"), synth_root, 4)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, options: list[str], prep: Command) -> Path:
    out = tmp_path_factory.mktemp("here") / "out"
    done = prep("build", "synth", "--out", out, "--workers", 2, *options)
    assert done.returncode == 0, done.stderr
    return out


def test_elsewhere(tmp_path: Path, here: Path, options: list[str]) -> None:
    """RIFE, CLIP4IDC and VQGAN in real processes that find another machine, of one core."""
    job = processes.start(
        "build", "synth", "--out", tmp_path / "out", "--workers", 1, *options,
        env={**os.environ, **ELSEWHERE}, cwd=tmp_path,
        preexec_fn=lambda: os.sched_setaffinity(0, {0}),
    )  # fmt: skip
    output = processes.ended(job)
    assert job.returncode == 0, output
    assert digests(tmp_path / "out") == digests(here)


OLD_PROCESSOR = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
}


def test_another_processor(tmp_path: Path, synth_root: Path, prep: Command) -> None:
    """Other kernels add up in another order: how far that may go, with the weights that we ship."""
    arguments = [
        "--root",
        str(synth_root),
        "--set",
        "image_size=64",
        "--limit",
        "3",
        "--split",
        "train",
    ]
    done = prep("build", "synth", "--out", tmp_path / "here", *arguments)
    assert done.returncode == 0, done.stderr
    job = processes.start(
        *("build", "synth", "--out", tmp_path / "there", *arguments),
        env={**os.environ, **OLD_PROCESSOR},
    )
    output = processes.ended(job)
    assert job.returncode == 0, output
    codes, logits, chosen = [], [], []
    for shard in sorted(tmp_path.glob("here/shards/*.tar")):
        other = tmp_path / "there/shards" / shard.name
        for a, b in zip(
            training_shards.read(str(shard)), training_shards.read(str(other)), strict=True
        ):
            codes.append((a.tokens == b.tokens).mean())
            logits.append(np.abs(a.scores - b.scores).max())
            chosen.append(a.meta["keyframes"] == b.meta["keyframes"])
    print(f"codes the same {np.mean(codes):.3%}; logits differ by {max(logits):.4f} at most; "
          f"keyframes the same {np.mean(chosen):.0%}")  # fmt: skip
    assert np.mean(codes) > 0.99
    assert max(logits) < 0.05
    assert np.mean(chosen) > 0.8
