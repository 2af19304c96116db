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
    help="Only this split (repeatable); default: the manifest's splits.",
)


def dataset_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds DATASET and the options that select the data."""
    for option in (
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a manifest key, such as interpolate.depth=2 (repeatable).",
        ),
        click.option(
            "--root", metavar="DIR", help="Folder of the raw data; default: the manifest's root."
        ),
        click.argument("dataset"),
    ):
        command = option(command)
    return command


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a job on Ray that runs networks."""
    for option in (
        click.option(
            "--device",
            type=click.Choice(["auto", "cpu", "gpu", "cuda"]),
            default="auto",
            show_default=True,
            callback=lambda _, __, device: "gpu" if device == "cuda" else device,
            help="Where the networks run; cuda is another name of gpu.",
        ),
        click.option(
            "--gpus-per-worker",
            type=click.FloatRange(0, 1, min_open=True),
            default=1.0,
            show_default=True,
            help="Share of a GPU for each worker, so that several jobs can run on one.",
        ),
    ):
        command = option(command)
    workers = "Number of workers; default: one per GPU, or one per two CPU cores without GPUs."
    return _common_job_options(command, workers)


def job_options_without_networks(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a job on Ray in which no network runs, so that it takes no GPU."""
    return _common_job_options(command, "Number of workers; default: one per CPU core.")


def _common_job_options(command: Callable[..., None], workers: str) -> Callable[..., None]:
    """The options of every job on Ray.

    Args:
        workers: The help of --workers.
    """
    for option in (
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print the summary as JSON, one line for each folder that is written.",
        ),
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print the plan and stop. Starts Ray, to count the free CPUs and GPUs.",
        ),
        click.option(
            "--retry-rejects",
            is_flag=True,
            help="Process the rejected pairs again; jobs on stored shards make each that has one "
            "as a whole.",
        ),
        click.option(
            "--max-rejects",
            type=click.FloatRange(0, 1),
            default=0.01,
            show_default=True,
            help="Share of rejected pairs above which the exit code is 1.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(1),
            help="Process at most this many pairs of each split.",
        ),
        click.option("--workers", type=click.IntRange(1), help=workers),
        splits_option,
        click.option("--out", required=True, metavar="OUT", help="Output folder or URL."),
    ):
        command = option(command)
    return command
