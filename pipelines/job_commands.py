"""The commands of `cc-prep` that start a job on Ray: a step each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed

if TYPE_CHECKING:
    from pipelines.job import Options, Request, Summary


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
        click.option("--split", "splits", multiple=True, help="Only this split (repeatable)."),
        click.option("--out", required=True, metavar="OUT", help="Output folder or URL."),
    ):
        command = option(command)
    return command


@click.command()
@dataset_options
@job_options
def interpolate(**given: Any) -> None:
    """Interpolates every pair of DATASET to a sequence: OUT/sequences/*.tar.

    Runs on Ray: locally, or on the cluster that RAY_ADDRESS names. A killed run is resumed by the
    same command. DATASET is a name under manifests/ or a YAML file.

    \b
    Example:
      cc-prep interpolate clevr --root /data/clevr --out out/clevr --split val --limit 100
    """
    from pipelines.interpolate import interpolate as step

    _run(given, step)


@click.command("score-frames")
@dataset_options
@job_options
def score_frames(**given: Any) -> None:
    """Scores the frames of OUT/sequences against their captions: OUT/scores/*.parquet.

    With CLIP4IDC; a sequence without captions is scored by its images alone.

    \b
    Example:
      cc-prep score-frames clevr --out out/clevr
    """
    from pipelines.score_frames import score_frames as step

    _run(given, step)


@click.command()
@dataset_options
@click.option(
    "--from",
    "source",
    metavar="DIR",
    help="The --out whose sequences and scores are taken; default: OUT.",
)
@job_options
def build(source: str | None, **given: Any) -> None:
    """Makes training shards: VQGAN tokens, scores and keyframes: OUT/shards/*.tar.

    Takes the sequences and scores that lie in OUT; what is not there is made on the way in the same
    stream and not written. The bytes are the same either way.

    \b
    Example:
      cc-prep build clevr --root /data/clevr --out out/clevr
      cc-prep build clevr --from out/clevr --out out/clevr-k4 --set keyframes.k=4
    """
    from pipelines.build import build as step

    _run(given, lambda request: step(request, source))


def import_from_procap(source: str, **given: Any) -> None:
    """Runs both import jobs, sequences first."""
    from pipelines import procap

    _run(given, lambda request: procap.import_frames(request, source))
    if not given["dry_run"]:  # the second step plans from what the first one wrote
        _run(given, lambda request: procap.import_scores(request, source))


def _run(given: dict[str, Any], step: Callable[[Request], Summary | None]) -> None:
    """Loads the manifest, runs the step, says what it did."""
    from cc_prep import manifest
    from pipelines.engine import messages
    from pipelines.job import Options, Request

    settings = manifest.load(given["dataset"], given["overrides"], given["root"])
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    splits = given["splits"] or settings.splits
    request = Request(settings, given["out"], splits, given["limit"], options, messages())
    _conclude(step(request), options, given["as_json"])


def _conclude(summary: Summary | None, options: Options, as_json: bool) -> None:
    """Prints what a job did; raises JobFailed if too much of it was rejected."""
    if summary is None:
        return
    _print_summary(summary, as_json)
    if summary.too_many_rejects(options.max_rejects):
        raise JobFailed(
            f"{summary.rejected} of {summary.planned} pairs rejected, more than --max-rejects "
            f"{options.max_rejects:g}; reasons: {summary.folder}/rejects.parquet"
        )


def _print_summary(summary: Summary, as_json: bool) -> None:
    from dataclasses import asdict

    if as_json:
        click.echo(json.dumps(asdict(summary)))
        return
    from pipelines.commands import print_tree
    from pipelines.progress import amount

    pairs = max(summary.samples + summary.rejected, 1)
    print_tree(
        {
            "written": f"{summary.samples:,} of {summary.planned:,} pairs",
            "rejected": summary.rejected,
            "shards": f"{summary.shards:,}, {summary.made_now:,} of them in this run",
            "size": f"{amount(summary.bytes)}, {amount(summary.bytes // pairs)} a pair",
            "work": f"{summary.seconds:,.1f} worker seconds, {summary.seconds / pairs:.2f} a pair",
            "folder": summary.folder,
        }
    )
