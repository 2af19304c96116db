"""Both stages of ProCap on a GPU: as on a CPU, in each precision, compiled, resumed, on two."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from cc_train import start, systems
from cc_train.training.task import TrainingRequest
from tests import shard_factory

Row = Callable[[str, str, str], None]
STEPS = 6
NETWORK = {"layers": 4, "width": 256, "position_std": 0.02}
DECODER = {"width": 64, "heads": 4, "hidden": 128, "length": 8, "dropout": 0.0}
OWN: dict[str, dict[str, Any]] = {
    "stage1": {"network": NETWORK},
    "stage2": {"network": NETWORK, "decoder": DECODER, "stream": {"pair_scenes": False}},
}
# How far the losses of six steps may be from the CPU's in float32, as a share of them.
TOLERANCES = {"float32": 1e-3, "bfloat16": 5e-2, "float16": 2e-2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, and a run of each stage on the CPU: `<system>-cpu`."""
    folder = tmp_path_factory.mktemp("gpu")
    shard_factory.write_tokens(folder, 8)
    for system in OWN:
        train(system, folder, folder / f"{system}-cpu", device="cpu")
    return folder


def values(system: str, folder: Path, **loop: Any) -> dict[str, Any]:
    most = {"steps": STEPS, "epochs": None, "global_batch_size": 4, "batch_size": 4,
            "learning_rate": 1e-3, "warmup_steps": 0, "warmup_ratio": None, "log_every": 1,
            "validate_every": 3, "checkpoint_every": 3, "keep_checkpoints": 9,
            "device": "cuda"}  # fmt: skip
    return {"vqgan": str(folder / "vqgan.safetensors"), **OWN[system], "loop": {**most, **loop}}


def train(system: str, folder: Path, run: Path, **loop: Any) -> float:
    """Trains; the seconds that it took."""
    settings = systems.recipe(system).Settings.model_validate(values(system, folder, **loop))
    request = TrainingRequest([f"{folder}/train-*.tar"], [], run, console=Console(quiet=True))
    began = time.perf_counter()
    start.train(system, settings, request)
    return time.perf_counter() - began


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["part"] == "train"]


def apart(run: Path, other: Path) -> float:
    """The largest difference of two runs' losses, as a share of them."""
    pairs = zip(losses(run), losses(other), strict=True)
    return max(abs(one - two) / abs(two) for one, two in pairs)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("system", OWN)
def test_losses_are_those_of_a_cpu(
    folder: Path, row: Row, system: str, precision: str, compiled: bool
) -> None:
    run = folder / f"{system}-{precision}-{compiled}"
    took = train(system, folder, run, precision=precision, compile=compiled)
    difference = apart(run, folder / f"{system}-cpu")
    assert difference <= TOLERANCES[precision]
    how = f"{system}, {precision}{', compiled' if compiled else ''}"
    figures = f"{difference:.3%}; {took:.1f} s for {STEPS} steps"
    row(how, f"losses {TOLERANCES[precision]:.1%}", figures)


@pytest.mark.parametrize("system", OWN)
def test_a_run_of_a_cpu_goes_on(folder: Path, row: Row, system: str) -> None:
    run = folder / f"{system}-resumed"
    shutil.copytree(folder / f"{system}-cpu", run)
    shutil.rmtree(run / f"checkpoints/{STEPS:06d}")
    train(system, folder, run)
    difference = apart(run, folder / f"{system}-cpu")
    assert difference <= TOLERANCES["float32"]
    state = json.loads((run / f"checkpoints/{STEPS:06d}/state.json").read_text())
    assert state["machine"]["gpu"] == torch.cuda.get_device_name()
    row(f"{system}, resumed from a CPU's run", "losses 0.1%", f"{difference:.3%}")


@pytest.mark.parametrize("system", OWN)
def test_batches_that_are_read_ahead_are_the_same(folder: Path, row: Row, system: str) -> None:
    """Keeps away: a copy to the GPU that is used before it is there, or written over."""
    train(system, folder, folder / f"{system}-ahead", loader_workers=2)
    difference = apart(folder / f"{system}-ahead", folder / f"{system}-cpu")
    assert difference <= TOLERANCES["float32"]
    row(f"{system}, two loader workers", "losses 0.1%", f"{difference:.3%}")


def test_two_gpus(folder: Path, row: Row) -> None:
    """Keeps away: NCCL that sums otherwise than gloo, or processes that share a GPU."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU alone")
    run, config = folder / "stage1-two", folder / "two.yaml"
    config.write_text(json.dumps(values("stage1", folder)))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
         "-m", "cc_train", "stage1", "--config", str(config), "--out", str(run),
         "--shards", f"{folder}/train-*.tar"],
        capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    difference = apart(run, folder / "stage1-cpu")
    assert difference <= TOLERANCES["float32"]
    whole = load_file(folder / f"stage1-cpu/checkpoints/{STEPS:06d}/model.safetensors")
    assert load_file(run / f"checkpoints/{STEPS:06d}/model.safetensors").keys() == whole.keys()
    row("stage1, two GPUs by NCCL", "losses 0.1%", f"{difference:.3%}")
