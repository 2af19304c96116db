"""The same run on 1 and 2 processes, and on 4 that go on with the run of one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch.distributed import TCPStore

from cc_train import start, systems
from cc_train.training.task import TrainingRequest
from tests import commands, shard_factory
from tests.run_factory import log

STEPS, BATCH = 4, 4
NETWORK = {"layers": 1, "width": 64, "position_std": 0.02}
DECODER = {"width": 16, "heads": 2, "hidden": 16, "length": 8, "dropout": 0.2}
OWN = {
    "stage1": {"network": NETWORK},
    # Dropout is drawn for each micro-batch, and so it is the same for any number of processes.
    "stage2": {"network": NETWORK, "decoder": DECODER, "stream": {"pair_scenes": False}},
}


def train(system: str, folder: Path, run: Path, most: int = 1) -> None:
    loop = {
        "steps": STEPS, "epochs": None, "global_batch_size": BATCH, "batch_size": most,
        "learning_rate": 1e-3, "warmup_steps": 0, "warmup_ratio": None, "log_every": 1,
        "validate_every": 2, "checkpoint_every": 2, "keep_checkpoints": 9, "device": "cpu",
    }  # fmt: skip
    vqgan = str(folder / "vqgan.safetensors")
    model = systems.recipe(system).Settings
    settings = model.model_validate({"vqgan": vqgan, **OWN[system], "loop": loop})
    request = TrainingRequest([f"{folder}/train-*.tar"], [], run, console=Console(quiet=True))
    start.train(system, settings, request)


def one_of(rank: int, world: int, ports: dict[str, int], folder: Path, name: str) -> None:
    torch.set_num_threads(1)
    for system, port in ports.items():
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }  # fmt: skip
        train(system, folder, folder / f"{system}-{name}")


def together(world: int, folder: Path, name: str) -> None:
    """Both stages, by so many processes; they share one start of Python and torch."""
    # As of torchrun: the one who starts the processes serves the stores where they meet.
    stores = {system: TCPStore("127.0.0.1", 0, is_master=True) for system in OWN}
    ports = {system: store.port for system, store in stores.items()}
    processes = [
        commands.forkserver().Process(
            target=one_of, args=(rank, world, ports, folder, name), daemon=True
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * world


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs `<system>-1`, by one process; `-2`, by two; `-1to4`, which four went on with."""
    folder = tmp_path_factory.mktemp("elastic")
    shard_factory.write_tokens(folder, 6)
    for system in OWN:
        train(system, folder, folder / f"{system}-1")
        shutil.copytree(folder / f"{system}-1", folder / f"{system}-1to4")
        shutil.rmtree(folder / f"{system}-1to4/checkpoints/000004")
    together(2, folder, "2")
    together(4, folder, "1to4")
    return folder


@pytest.mark.parametrize("division", ["2", "1to4"])
@pytest.mark.parametrize("system", OWN)
def test_the_division_of_a_step_changes_nothing(folder: Path, system: str, division: str) -> None:
    """Keeps away: wrong captions of the neighbours that a process happens to have, dropout or
    denominators of one process, a validation of one process's pairs alone."""
    whole, divided = folder / f"{system}-1", folder / f"{system}-{division}"
    for line, expected in zip(log(divided), log(whole), strict=True):
        assert line.pop("part") == expected.pop("part")
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-5)
    name = f"checkpoints/{STEPS:06d}/model.safetensors"
    weights, same = (load_file(run / name) for run in (divided, whole))
    assert weights.keys() == same.keys()
    for key, tensor in weights.items():
        one, other = compared(key, tensor), compared(key, same[key])
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, msg=key)


def compared(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """All but the biases of attention's keys: the softmax is blind to them, so that their gradient
    is rounding alone, of which Adam makes a step as large as any."""
    if not name.endswith("in_proj_bias"):
        return tensor
    queries, _, values = tensor.chunk(3)
    return torch.cat((queries, values))


def test_micro_batches_of_another_size_give_the_same_losses(folder: Path) -> None:
    """Keeps away: partners that depend on the micro-batch."""
    train("stage1", folder, folder / "stage1-whole", most=BATCH)
    for line, expected in zip(log(folder / "stage1-whole"), log(folder / "stage1-1"), strict=True):
        assert line.pop("part") == expected.pop("part")
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-5)
