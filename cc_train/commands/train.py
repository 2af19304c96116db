"""What the commands of `cc-train` do that train a system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from cc_prep import weights
from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.storage import outputs
from cc_prep.terminal import echo
from cc_train import configs, start, systems
from cc_train.sharing import hub
from cc_train.systems import System
from cc_train.training.task import Request


def train(
    system: System,
    *,
    shards: tuple[str, ...],
    run: str,
    config: str | None,
    init: str | None,
    steps: int | None,
    overrides: tuple[str, ...],
    resume: str,
    valid: tuple[str, ...] = (),
) -> None:
    """Trains a system and prints the last validation. Raises UserError and JobFailed."""
    outputs.check_folder(run)
    console = on_stderr()
    settings = _settings(system, config, steps, overrides, console)
    start_from = None if init is None else _start(init)
    request = Request(shards, valid, Path(run), start_from, resume, console, init_name=init)
    figures = start.train(system.name, settings, request)
    if not console.quiet:  # another rank says it
        echo(f"{run}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


def dry_run(
    system: System, *, config: str | None, steps: int | None, overrides: tuple[str, ...]
) -> None:
    """Prints what a training would take. Raises UserError."""
    settings = _settings(system, config, steps, overrides, on_stderr())
    echo(systems.dry_run(system.name, settings).rstrip("\n"))


def _start(init: str) -> Path:
    """Path of the run, captioner or weights that a training starts from. Raises UserError."""
    path = hub.locate(init)
    if not path.exists() and weights.is_known(init):
        return weights.fetch(init).path
    if not path.exists():
        raise UserError(f"--init {init}: no such file or folder", "Check the path")
    return path


def _settings(
    system: System,
    config: str | None,
    steps: int | None,
    overrides: tuple[str, ...],
    console: Console,
) -> Any:
    changes = [*overrides, *([f"loop.steps={steps}"] if steps is not None else [])]
    model = systems.recipe(system.name).Settings
    return configs.load(model, system.name, config, changes, console)
