"""The commands of `cc-train` that train: one for each system of the table."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from cc_prep.errors import UserError
from cc_prep.terminal import echo
from cc_train import systems
from cc_train.cli.options import SHARDS
from cc_train.systems import System

# configs.recipes(), which imports more
RECIPES = "clip4idc-mini, vqgan-f16, vqgan-mini, vqgan-mini-f8"
OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--shards"],
        multiple=True,
        metavar="SHARDS",
        help=f"Shards to train on: {SHARDS}.  [required]",
    ),
    click.Option(["--out", "run"], metavar="RUN", help="The run's folder.  [required]"),
    click.Option(
        ["--config"],
        metavar="NAME|FILE",
        help="Settings: a manifest (name or file), a YAML file of settings, or a recipe of the "
        f"package ({RECIPES}). Without it all settings have their defaults.",
    ),
    click.Option(["--steps"], type=click.IntRange(1), help="Short for --set loop.steps=N."),
    click.Option(
        ["--set", "overrides"],
        multiple=True,
        metavar="KEY=VALUE",
        help="Override a setting, such as loop.batch_size=8 (repeatable).",
    ),
    click.Option(
        ["--resume"],
        type=click.Choice(["auto", "never"]),
        default="auto",
        show_default=True,
        help="auto: resume from the last checkpoint in RUN; never: refuse a folder that has a run.",
    ),
]
INIT = click.Option(
    ["--init"], metavar="PATH", help="A run or weights to start from, as described above."
)
VALID = click.Option(
    ["--valid"],
    multiple=True,
    metavar="SHARDS",
    help=f"Shards to validate on: {SHARDS}. Default: some of the scenes in --shards "
    "(validation_split.share and validation_split.scenes).",
)

SETTINGS = click.Option(
    ["--settings", "show_settings"],
    is_flag=True,
    help="Print every setting with its value, meaning and range, and stop. The output is YAML that "
    "--config takes.",
)
DRY_RUN = click.Option(
    ["--dry-run"],
    is_flag=True,
    help="Print the steps, FLOPs, memory and hours of the training, and stop.",
)


def command(system: System) -> click.Command:
    """The command that trains a system."""
    start = [INIT] if system.init else []
    options = [*OPTIONS, *start, *([VALID] if system.valid else []), SETTINGS, DRY_RUN]
    return click.Command(
        system.name,
        params=options,
        help=inspect.cleandoc(system.help),
        callback=partial(train, system),
    )


def train(
    system: System,
    *,
    shards: tuple[str, ...],
    run: str | None,
    config: str | None,
    steps: int | None,
    overrides: Sequence[str],
    resume: str,
    show_settings: bool,
    init: str | None = None,
    valid: tuple[str, ...] = (),
    dry_run: bool = False,
) -> None:
    """Trains a system and prints the last validation, or prints its settings or its cost.

    Raises:
        UserError: Settings, shards or folder are wrong.
        JobFailed: The training failed.
    """
    from cc_prep import settings as settings_files
    from cc_prep.console import on_stderr
    from cc_prep.storage import outputs
    from cc_train import configs, start
    from cc_train.training.task import TrainingRequest

    needs_shards = not (show_settings or (dry_run and system.dry_run))
    for name, given, needed in (
        ("--shards", shards, needs_shards),
        ("--out", run, needs_shards and not dry_run),
    ):
        if needed and not given:
            raise click.MissingParameter(param_hint=f"'{name}'", param_type="option")
    if needs_shards and not dry_run:
        outputs.check_folder(str(run))
    console = on_stderr()
    if steps is not None:
        overrides = [*overrides, f"loop.steps={steps}"]
    model = systems.recipe(system.name).Settings
    settings = configs.load(model, system.name, config, overrides, console)
    if show_settings:
        echo(f"# Edit this file, and give it to `cc-train {system.name} --config`.\n")
        echo(settings_files.commented(settings).rstrip("\n"))
        return
    if dry_run and system.dry_run:
        echo(systems.dry_run(system.name, settings).rstrip("\n"))
        return
    start_from = None if init is None else _start(init)
    out = Path(run or "dry-run")
    request = TrainingRequest(shards, valid, out, start_from, resume, console, init_name=init)
    if dry_run:
        echo(start.estimate(system.name, settings, request))
        return
    figures = start.train(system.name, settings, request)
    if not console.quiet:  # another rank says it
        echo(f"{run}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))


def _start(init: str) -> Path:
    """Path of the run, captioner or weights that a training starts from. Raises UserError."""
    from cc_prep import weights
    from cc_train.sharing import hub

    path = hub.locate(init)
    if not path.exists() and weights.is_known(init):
        return weights.fetch(init).path
    if not path.exists():
        raise UserError(f"--init {init}: no such file or folder", "Check the path")
    return path
