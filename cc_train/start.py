"""The start of a training: all steps between the command and the training loop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from cc_prep.errors import UserError
from cc_prep.settings import Role, Section, keys
from cc_train import distributed, systems
from cc_train.runs import origin
from cc_train.training.loop import fit
from cc_train.training.settings import Loop, compute_dtype, pick_device
from cc_train.training.task import Task, TrainingRequest

if TYPE_CHECKING:
    from cc_train.training.cost import Count

FEW_ITEMS = (2, 4)  # of the micro-batches of an estimate


def train(system: str, settings: Any, request: TrainingRequest) -> dict[str, float]:
    """Trains a system; the last validation's metrics. Raises UserError and JobFailed.

    Args:
        settings: The system's `Settings`, whose `loop` is a `Loop`.
    """
    assert isinstance(settings, Section)
    loop = settings.loop  # type: ignore[attr-defined]
    if loop.threads:
        torch.set_num_threads(loop.threads)
    device = pick_device(loop.device, "Use --set loop.device=cpu", loop.tf32)
    if not systems.get(system).ranks and distributed.world_size() > 1:
        raise UserError(f"{system} is trained by one process", "Start it without torchrun")
    with distributed.joined(device == "cuda") as ranks:
        console = request.console
        console.quiet = not ranks.is_main_process
        asked, loop = loop, loop.split_over(ranks.world)
        note = small_parts(asked, loop, ranks.world)
        if note:
            console.print(note)
        settings = settings.model_copy(update={"loop": loop})
        torch.manual_seed(loop.seed)
        request = replace(request, ranks=ranks, device=device)
        task = systems.recipe(system).prepare(settings, request)
        settings = task.settings or settings
        loop = loop.with_resolved_epochs(task.items, ranks.world)
        start = origin.started_from(request.init, request.init_name)
        if start is not None:  # other machines may have it elsewhere
            start["place"] = ranks.broadcast_from_rank0(lambda: start["place"])
        about = {"system": system, "files": sorted(task.files), origin.INIT: start, **task.about}
        values = settings.model_copy(update={"loop": loop}).model_dump(mode="json")
        assert not about.keys() & values.keys(), "a key of `about` is also a setting"
        config = {**about, **values}
        if loop.precision == "bfloat16" and compute_dtype(loop.precision, device) == torch.float32:
            console.print("This processor only emulates bfloat16: layers compute in float32")
        return fit(
            task.objective,
            task.source,
            loop,
            config=config,
            speed=keys(type(settings), role=Role.SPEED),
            files=task.files,
            run=request.run,
            resume=request.resume,
            console=console,
            ranks=ranks,
            device=device,
        )


def estimate(system: str, settings: Any, request: TrainingRequest) -> str:
    """The cost of a training on these shards, as text. Raises UserError and JobFailed.

    Args:
        settings: The system's `Settings`.
    """
    from cc_train.training import cost  # torch's counter imports its compiler

    task, counts = counted(system, settings, request)
    loop = settings.loop.split_over(1).with_resolved_epochs(task.items, 1)
    return cost.table(counts, task.objective, loop, task.items)


def counted(system: str, settings: Any, request: TrainingRequest) -> tuple[Task, list[Count]]:
    """A training with the counts of its micro-batches, as `cost` takes them.

    Args:
        settings: The system's `Settings`.

    Raises:
        UserError and JobFailed: As a training does.
    """
    from cc_train.training import cost

    loop: Loop = settings.loop
    if loop.threads:
        torch.set_num_threads(loop.threads)
    loop, counts = loop.split_over(1), list[cost.Count]()
    for items in FEW_ITEMS:
        few = {"batch_size": items, "grad_accum_steps": 1, "global_batch_size": items}
        tried = settings.model_copy(update={"loop": loop.model_copy(update=few)})
        torch.manual_seed(loop.seed)
        task = systems.recipe(system).prepare(tried, replace(request, device="cpu"))
        counts.append(cost.count(task.objective, task.source(0), items))
        if task.objective.over == "sum":
            break
    return task, counts


def small_parts(asked: Loop, loop: Loop, world: int) -> str:
    """A note where micro-batches are half as large as `batch_size` allows, or less; else "".

    Args:
        asked: The settings as they were given.
        loop: The same, divided among so many processes.
    """
    if loop.grad_accum_steps == 1 or 2 * loop.batch_size > asked.batch_size:
        return ""
    share = loop.batch_size * loop.grad_accum_steps
    return (
        f"A step has {loop.grad_accum_steps} micro-batches of {loop.batch_size} on each process, "
        f"which is slow: {share} has no larger divisor up to loop.batch_size={asked.batch_size}. "
        f"Give a multiple of {asked.batch_size * world} as loop.global_batch_size, or another "
        "loop.batch_size"
    )
