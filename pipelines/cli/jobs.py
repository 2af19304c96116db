"""The commands that start a job on Ray, and the exchange with ProCap's files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed
from pipelines.cli.options import dataset_options, job_options
from pipelines.cli.printing import damage_is_a_user_error, print_tree, progress_bar

if TYPE_CHECKING:
    from pipelines.job import Request, Summary

SHOWN_REJECTS = 2


@click.command()
@dataset_options
@job_options
def interpolate(**options: Any) -> None:
    """Interpolates every pair of DATASET to a sequence: OUT/sequences/*.tar.

    Runs on Ray: locally, or on the cluster that RAY_ADDRESS names. A killed run is resumed by the
    same command. DATASET is a name under manifests/ or a YAML file.

    \b
    Example:
      cc-prep interpolate clevr --root /data/clevr --out out/clevr --split val --limit 100
    """
    from pipelines.interpolate import interpolate as step

    _run(options, step)


@click.command()
@dataset_options
@job_options
def changes(**options: Any) -> None:
    """Finds what changed in every pair of DATASET, without the truth: OUT/changes/*.tar.

    Masks and regions by difference, clusters and a segmenter. From the sequences in OUT where they
    are there and lossless, else from the raw images.

    \b
    Example:
      cc-prep changes spot --root /data/spot --out out/spot
    """
    from pipelines.regions.changes_job import changes as step

    _run(options, step)


@click.command()
@dataset_options
@job_options
def entities(**options: Any) -> None:
    """Names what changed by noun phrases of the training captions: OUT/entities/*.parquet.

    For the regions in OUT/changes, by training pairs that look alike or by CLIP. The vectors that
    are compared lie in OUT/region_features.

    \b
    Example:
      cc-prep entities spot --root /data/spot --out out/spot
    """
    from pipelines.regions.entities_job import find_entities, find_vectors

    _run(options, find_vectors)
    if not options["dry_run"]:  # the second step plans from what the first one wrote
        _run(options, find_entities)


@click.command("score-frames")
@dataset_options
@job_options
def score_frames(**options: Any) -> None:
    """Scores the frames of OUT/sequences against their captions: OUT/scores/*.parquet.

    With CLIP4IDC; a sequence without captions is scored by its images alone.

    \b
    Example:
      cc-prep score-frames clevr --out out/clevr
    """
    from pipelines.score_frames import score_frames as step

    _run(options, step)


@click.command()
@dataset_options
@click.option(
    "--from",
    "source",
    metavar="DIR",
    help="The --out whose sequences, scores, found changes and entities are taken; default: OUT.",
)
@job_options
def build(source: str | None, **options: Any) -> None:
    """Makes training shards: VQGAN tokens, scores and keyframes: OUT/shards/*.tar.

    Takes the sequences and scores that lie in OUT; what is not there is made on the way in the same
    stream and not written. The bytes are the same either way.

    \b
    Example:
      cc-prep build clevr --root /data/clevr --out out/clevr
      cc-prep build clevr --from out/clevr --out out/clevr-k4 --set keyframes.k=4
    """
    from pipelines.build import build as step

    _run(options, lambda request: step(request, source))


@click.group("import")
def import_group() -> None:
    """Takes in what another system has made."""


@import_group.command("procap")
@dataset_options
@click.option("--from", "source", required=True, metavar="DIR", help="Where ProCap's files lie.")
@job_options
def import_procap(source: str, **options: Any) -> None:
    """Takes ProCap's HDF5 sequences and score JSON of DATASET: OUT/sequences, OUT/scores.

    DATASET's own captions and splits say which pairs there are; `build` goes on from there.

    \b
    Example:
      cc-prep import procap clevr --root /data/clevr --from procap/clevr --out out/clevr
    """
    from pipelines import procap

    _run(options, lambda request: procap.import_frames(request, source))
    if not options["dry_run"]:  # the second step plans from what the first one wrote
        _run(options, lambda request: procap.import_scores(request, source))


@click.group("export")
def export_group() -> None:
    """Writes a job's output in the format of another system."""


@export_group.command("procap")
@click.argument("path")
@click.option("--to", "target", required=True, metavar="DIR", help="Where the files go.")
def export_procap(path: str, target: str) -> None:
    """Writes sequences and scores as ProCap's HDF5 files and JSON.

    \b
    Example:
      cc-prep export procap out/clevr --to procap/clevr
    """
    from pipelines import procap

    with damage_is_a_user_error(path), progress_bar("exporting") as progress:
        count = procap.export(path, target, progress)
    click.echo(f"{count['sequences']:,} sequences and {count['scores']:,} scores in {target}")


@export_group.command("scorer")
@click.argument("path")
@click.option("--to", "target", required=True, metavar="DIR", help="Where the files go.")
@click.option(
    "--without-end", is_flag=True, help="Captions without <END>, as DUDA's code has them."
)
def export_scorer(path: str, target: str, without_end: bool) -> None:
    """Writes training shards with features for the code of SCORER, DUDA, DIRL and MEDIC.

    A file of features for each image, labels.h5, vocab.json and splits.json.

    \b
    Example:
      cc-prep export scorer out/pairs --to scorer/pairs
    """
    from cc_prep.formats import scorer, training_shards
    from cc_prep.inspect import verification

    with damage_is_a_user_error(path), progress_bar("exporting") as progress:
        folder = verification.find_one(path, training_shards.FORMAT)
        count = scorer.export_folder(folder, target, not without_end, progress)
    click.echo(f"{count['images']:,} images of {count['pairs']:,} pairs in {target}")


def _run(options: dict[str, Any], step: Callable[[Request], Summary | None]) -> None:
    """Loads the manifest, runs the step and prints its summary.

    Raises JobFailed if more than --max-rejects of the pairs were rejected.
    """
    from cc_prep import manifest
    from pipelines.cluster.output import messages
    from pipelines.job import Options, Request

    settings = manifest.load(options["dataset"], options["overrides"], options["root"])
    run = Options(**{field.name: options[field.name] for field in fields(Options)})
    splits = options["splits"] or settings.splits
    request = Request(settings, options["out"], splits, options["limit"], run, messages())
    summary = step(request)
    if summary is None:
        return
    _print_summary(summary, options["as_json"])
    if summary.too_many_rejects(run.max_rejects):
        raise JobFailed(
            f"{summary.rejected} of {summary.planned} pairs rejected, more than --max-rejects "
            f"{run.max_rejects:g}: {_first_rejects(summary.folder)}"
        )


def _first_rejects(folder: str) -> str:
    """Why the first pairs were rejected, and where all reasons stand."""
    from cc_prep.formats import rejects

    rejected = rejects.read(folder)
    first = "; ".join(f"{one.key}: {one.message}" for one in rejected[:SHOWN_REJECTS])
    return f"{first}; all reasons: {folder}/{rejects.FILE}"


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(summary)))
        return
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
