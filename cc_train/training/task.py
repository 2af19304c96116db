"""What a system is asked for, and what it gives to the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from cc_train.data.stream import Source
from cc_train.distributed import Ranks
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

    items: of an epoch, as the source counts them: where it pairs scenes, a scene is one. about:
        what identifies the training besides its settings; a run goes on only with the same. files:
        what a run needs beside its checkpoints, by name.
    """

    objective: Objective
    source: Source
    items: int
    about: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
