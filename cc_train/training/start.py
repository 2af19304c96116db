"""From a command to the loop: what every training does before its first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train import systems
from cc_train.data.stream import Source
from cc_train.training import distributed, runs
from cc_train.training.distributed import Ranks
from cc_train.training.loop import fit
from cc_train.training.settings import pick_device
from cc_train.training.trainer import Objective


@dataclass(frozen=True)
class Request:
    """What a command asks for besides the settings.

    shards, valid: patterns of shards to train and to validate on. init: what to start from.
    """

    shards: Sequence[str]
    valid: Sequence[str]
    run: Path
    init: Path | None = None
    resume: str = "auto"
    console: Console = field(default_factory=lambda: Console(stderr=True))
    ranks: Ranks = field(default_factory=Ranks)
    device: str = "cpu"


@dataclass(frozen=True)
class Task:
    """A system ready to be trained.

    items: of an epoch. about: what identifies the training besides its settings; a run goes on only
    with the same. files: what a run needs beside its checkpoints, by name.
    """

    objective: Objective
    source: Source
    items: int
    about: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


def train(system: str, settings: Any, request: Request) -> dict[str, float]:
    """Trains a system; the last validation's figures. Raises UserError and JobFailed.

    settings: the system's `Settings`, whose `loop` is a `Loop`.
    """
    assert isinstance(settings, Section)
    loop = settings.loop  # type: ignore[attr-defined]
    if loop.threads:
        torch.set_num_threads(loop.threads)
    device = pick_device(loop.device)
    if not systems.get(system).ranks and distributed.world_size() > 1:
        raise UserError(f"{system} is trained by one process", "Start it without torchrun")
    with distributed.joined(device == "cuda") as ranks:
        console = request.console
        console.quiet = not ranks.first
        torch.manual_seed(loop.seed)
        asked = Request(**{**request.__dict__, "ranks": ranks, "device": device})
        task = systems.recipe(system).prepare(settings, asked)
        loop = loop.lasting(task.items, ranks.world)
        config = {
            "system": system,
            "files": sorted(task.files),
            **task.about,
            **settings.model_copy(update={"loop": loop}).model_dump(mode="json"),
        }
        if ranks.first:
            runs.write_files(request.run, task.files)
        return fit(
            task.objective, task.source, loop, config, request.run, request.resume, console, ranks
        )
