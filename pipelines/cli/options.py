"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _each_once(_: click.Context, __: click.Parameter, splits: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(splits))


splits_option = click.option(
    "--split",
    "splits",
    multiple=True,
    callback=_each_once,
    help="Only this split (repeatable).",
)


def dataset_options(command: Callable[..., None]) -> Callable[..., None]:
    """DATASET and the options that say which data is meant."""
    for option in (
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a manifest key, such as interpolate.depth=2 (repeatable).",
        ),
        click.option("--root", metavar="DIR", help="Where the raw data lies."),
        click.argument("dataset"),
    ):
        command = option(command)
    return command


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every job on Ray."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        click.option("--dry-run", is_flag=True, help="Print the plan and stop."),
        click.option("--retry-rejects", is_flag=True, help="Try the rejected pairs again."),
        click.option(
            "--max-rejects",
            type=click.FloatRange(0, 1),
            default=0.01,
            show_default=True,
            help="Share of rejected pairs above which the exit code is 1.",
        ),
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "gpu"]),
            default="auto",
            show_default=True,
            help="Where the networks run.",
        ),
        click.option(
            "--gpus-per-worker",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            show_default=True,
            help="Share of a GPU for each worker, so that several jobs can run on one.",
        ),
        click.option("--limit", type=click.IntRange(1), help="At most so many pairs of a split."),
        click.option(
            "--workers",
            type=click.IntRange(1),
            help="Workers; default: one a GPU, else one for each two cores.",
        ),
        splits_option,
        click.option("--out", required=True, metavar="OUT", help="Output folder or URL."),
    ):
        command = option(command)
    return command
