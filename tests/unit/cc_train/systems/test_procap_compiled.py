"""Both stages of ProCap under torch.compile: one graph each, the same losses and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from cc_train import systems
from cc_train.data.stream import SKIPPED
from cc_train.training.task import Task, TrainingRequest
from cc_train.training.trainer import _Forward
from tests import shard_factory

NETWORK = {"layers": 1, "width": 64, "position_std": 0.02}
DECODER = {"width": 16, "heads": 2, "hidden": 16, "length": 8, "layers": 1, "dropout": 0.0}


def prepared(folder: Path, system: str) -> Task:
    shards, vqgan = shard_factory.write_tokens(folder, 4)
    model = systems.recipe(system).Settings
    own: dict[str, Any] = {"decoder": DECODER} if system == "stage2" else {}
    values = {"vqgan": str(vqgan), "network": NETWORK, "loop": {"batch_size": 2}, **own}
    torch.manual_seed(0)
    request = TrainingRequest([shards], [], folder / "run", console=Console(quiet=True))
    task: Task = systems.recipe(system).prepare(model.model_validate(values), request)
    return task


def gradients(
    task: Task, forward: Any, chunk: Any, counts: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    network = task.objective.network
    network.zero_grad()
    total = forward("model", chunk, 0, counts)["total"]
    total.backward()
    grads = {n: p.grad.clone() for n, p in network.named_parameters() if p.grad is not None}
    return total.detach(), grads


@pytest.mark.parametrize("system", ["stage1", "stage2"])
def test_a_step_is_one_graph_with_the_same_losses(tmp_path: Path, system: str) -> None:
    """Keeps away: a compiled step that falls back to Python in its middle, in silence."""
    task = prepared(tmp_path, system)
    batch = task.source(0)
    batch.pop(SKIPPED)
    [chunk] = task.objective.chunks(batch)
    counts = task.objective.denominators(batch)
    torch._dynamo.reset()
    # Whatever breaks the graph raises.
    compiled = torch.compile(_Forward(task.objective), backend="aot_eager", fullgraph=True)
    expected, by_hand = gradients(task, _Forward(task.objective), chunk, counts)
    total, grads = gradients(task, compiled, chunk, counts)
    torch.testing.assert_close(total, expected, rtol=1e-5, atol=1e-6)
    assert grads.keys() == by_hand.keys()
    for name, gradient in grads.items():
        assert (gradient - by_hand[name]).norm() <= 1e-4 * by_hand[name].norm() + 1e-5, name


def test_what_says_that_it_uses_every_parameter_does(tmp_path: Path) -> None:
    """Keeps away: processes that wait for a gradient which never comes."""
    task = prepared(tmp_path, "stage1")
    batch = task.source(0)
    batch.pop(SKIPPED)
    last = task.objective.chunks(batch)[-1]
    assert task.objective.all_parameters_used
    counts = task.objective.denominators(batch)
    _, grads = gradients(task, _Forward(task.objective), last, counts)
    assert grads.keys() == {name for name, _ in task.objective.network.named_parameters()}
