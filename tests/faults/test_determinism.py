"""How far other kernels change what is written; the same kernels write the same bytes."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numpy as np

from cc_prep.formats import training_shards
from tests.conftest import Command
from tests.faults import processes

OLD_PROCESSOR = {
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
}


def test_another_processor(tmp_path: Path, synth_root: Path, prepare: Command) -> None:
    """Other kernels add up in another order: how far that may go, with the weights that we ship."""
    arguments = ["--root", str(synth_root), "--set", "image_size=64", "--limit", "3",
                 "--split", "train"]  # fmt: skip
    done = prepare("build", "synth", "--out", tmp_path / "here", *arguments)
    assert done.returncode == 0, done.stderr
    job = processes.start_alone(
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
    if platform.machine() == "x86_64":  # elsewhere the variables name no kernels
        assert max(logits) > 0, "no other kernels were taken: torch knows these variables no more"
    assert np.mean(chosen) > 0.8
