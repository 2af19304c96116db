"""The commands that start a job on Ray, and the exchange with ProCap's files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import click

from cc_prep.errors import JobFailed
from cc_prep.progress import progress_bar
from cc_prep.terminal import echo
from cc_prep.words import counted
from pipelines.cli.options import dataset_options, job_options, job_options_without_networks
from pipelines.cli.printing import damage_is_a_user_error, print_tree

if TYPE_CHECKING:
    from pipelines.job import Summary

SHOWN_REJECTS = 2


@click.command()
@dataset_options
@job_options
def interpolate(**options: Any) -> None:
    """Interpolates every pair of DATASET to a sequence.

    Writes OUT/sequences/*.tar. The job runs on Ray, on this machine or on the cluster that
    RAY_ADDRESS names. The same command resumes a job that was killed. DATASET is a name under
    manifests/ or a YAML file.

    \b
    Example:
      cc-prep interpolate clevr --root /data/clevr --out out/clevr --split val --limit 100
    """
    _run(options, "interpolate")


@click.command()
@dataset_options
@job_options
def changes(**options: Any) -> None:
    """Finds what changed in every pair of DATASET.

    Writes OUT/changes/*.tar; the truth is not read. Masks and regions result from differences,
    clusters and a segmenter. Reads the sequences in OUT if they exist and are lossless, otherwise
    the raw images.

    \b
    Example:
      cc-prep changes spot --root /data/spot --out out/spot
    """
    _run(options, "changes")


@click.command()
@dataset_options
@job_options
def entities(**options: Any) -> None:
    """Names what changed by phrases of the training captions.

    Writes OUT/entities/*.parquet. Each region in OUT/changes gets phrases of training pairs that
    look alike, or those that CLIP chooses. The vectors that are compared are stored in
    OUT/region_features.

    \b
    Example:
      cc-prep entities spot --root /data/spot --out out/spot
    """
    _run(options, "region-features")
    if not options["dry_run"]:  # the second job plans from what the first one wrote
        _run(options, "entities")


@click.command("score-frames")
@dataset_options
@job_options
def score_frames(**options: Any) -> None:
    """Scores the frames of sequences against their captions.

    Reads OUT/sequences, writes OUT/scores/*.parquet. The network is CLIP4IDC. A sequence without
    captions is scored by its images alone.

    \b
    Example:
      cc-prep score-frames clevr --out out/clevr
    """
    _run(options, "score-frames")


@click.command()
@dataset_options
@click.option(
    "--from",
    "source",
    metavar="DIR",
    help="Output folder of the earlier steps (sequences, scores, changes, entities); default: OUT.",
)
@job_options
def build(source: str | None, **options: Any) -> None:
    """Makes training shards: tokens, scores, keyframes, features.

    Writes OUT/shards/*.tar. Uses the sequences and scores in OUT; missing ones are computed in the
    same job and are not stored. The shards have the same bytes either way.

    \b
    Example:
      cc-prep build clevr --root /data/clevr --out out/clevr
      cc-prep build clevr --from out/clevr --out out/clevr-k4 --set keyframes.k=4
    """
    _run(options, "build", source)


@click.command()
@dataset_options
@click.option(
    "--captioner",
    default="captioner-mini",
    show_default=True,
    metavar="RUN",
    help="A run's folder, an exported captioner, a name of ours or an id on the hub.",
)
@job_options
def caption(captioner: str, **options: Any) -> None:
    """Captions every pair of DATASET by a trained captioner.

    Writes OUT/captions/*.jsonl, a line of JSON for each pair with its id, the images and what
    `cc-train caption --json` prints of them. The job runs on Ray as the others do, resumes, and
    takes GPUs where there are any.

    \b
    Example:
      cc-prep caption mine --captioner out/mine/captioner --out out/mine-captions
    """
    _run(options, "caption", captioner)


@click.group("import")
def import_group() -> None:
    """Reads the data of another system."""


@import_group.command("procap")
@dataset_options
@click.option("--from", "source", required=True, metavar="DIR", help="Folder of ProCap's files.")
@job_options_without_networks
def import_procap(source: str, **options: Any) -> None:
    """Imports ProCap's HDF5 sequences and score JSON of DATASET: OUT/sequences, OUT/scores.

    The pairs are those of DATASET's own captions and splits. `cc-prep build` is the next step.

    \b
    Example:
      cc-prep import procap clevr --root /data/clevr --from procap/clevr --out out/clevr
    """
    options |= {"device": "cpu", "gpus_per_worker": 1.0}
    _run(options, "import-frames", source)
    if not options["dry_run"]:  # the second job plans from what the first one wrote
        _run(options, "import-scores", source)


@click.group("export")
def export_group() -> None:
    """Writes what another program reads."""


target_option = click.option(
    "--out", "target", required=True, metavar="DIR", help="Folder that is written."
)


@export_group.command("procap")
@click.argument("path")
@target_option
def export_procap(path: str, target: str) -> None:
    """Writes sequences and scores as ProCap's HDF5 files and JSON.

    \b
    Example:
      cc-prep export procap out/clevr --out procap/clevr
    """
    from pipelines import procap

    with damage_is_a_user_error(path), progress_bar("exporting") as progress:
        count = procap.export(path, target, progress)
    sequences = counted(count["sequences"], "sequence")
    echo(f"{sequences} and {counted(count['scores'], 'score')} in {target}")


@export_group.command("scorer")
@click.argument("path")
@target_option
@click.option(
    "--without-end", is_flag=True, help="Write captions without <END>, as DUDA's code has them."
)
def export_scorer(path: str, target: str, without_end: bool) -> None:
    """Writes training shards with features for the code of SCORER, DUDA, DIRL and MEDIC.

    A file of features for each image, labels.h5, vocab.json and splits.json.

    \b
    Example:
      cc-prep export scorer out/pairs --out scorer/pairs
    """
    from cc_prep.formats import scorer, training_shards
    from cc_prep.inspect import verification
    from pipelines.stored import finished_shards

    with damage_is_a_user_error(path), progress_bar("exporting") as progress:
        folder = verification.find_one(path, training_shards.FORMAT)
        finished_shards(folder, training_shards.FORMAT, "build")
        count = scorer.export_folder(folder, target, not without_end, progress)
    images = counted(count["images"], "image")
    echo(f"{images} of {counted(count['pairs'], 'pair')} in {target}")


def _run(options: dict[str, Any], job: str, source: str | None = None) -> None:
    """Loads the manifest, runs a job of `pipelines.jobs` and prints its summary.

    Raises JobFailed if more than --max-rejects of the pairs were rejected.
    """
    from cc_prep import manifest
    from pipelines import jobs
    from pipelines.cluster.session import messages
    from pipelines.job import Options, Request

    settings = manifest.load(options["dataset"], options["overrides"], options["root"])
    run = Options(**{field.name: options[field.name] for field in fields(Options)})
    splits = options["splits"] or settings.splits
    request = Request(settings, options["out"], splits, options["limit"], run, messages())
    summary = jobs.run(job, request, source)
    if summary is None:
        return
    _print_summary(summary, options["as_json"])
    if summary.too_many_rejects(run.max_rejects):
        raise JobFailed(
            f"{summary.rejected} of {summary.planned} pairs rejected, more than --max-rejects "
            f"{run.max_rejects:g}: {_first_rejects(summary)}"
        )


def _first_rejects(summary: Summary) -> str:
    """The reasons of the first rejected pairs, the file with all reasons, and the ways on."""
    from cc_prep.formats import rejects
    from cc_prep.records import pair_name

    folder, percent = summary.folder, math.ceil(100 * summary.rejected / summary.planned)
    rejected = rejects.read(folder)
    first = "; ".join(
        f"{pair_name(one.id, one.split, one.kind)}: {one.reason}, {one.message}"
        for one in rejected[:SHOWN_REJECTS]
    )
    return (
        f"{first}; all reasons: {folder}/{rejects.FILE}. Fix them and run the same command with "
        f"--retry-rejects, or accept them with --max-rejects {percent / 100:g}"
    )


def _print_summary(summary: Summary, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(asdict(summary)))
        return
    from pipelines.progress import amount

    pairs = max(summary.samples + summary.rejected, 1)
    print_tree(
        {
            "written": f"{summary.samples:,} of {summary.planned:,} pairs",
            "rejected": summary.rejected,
            "shards": f"{summary.shards:,}, {summary.made_now:,} of them in this run",
            "size": f"{amount(summary.bytes)}, {amount(summary.bytes // pairs)} per pair",
            "work": f"{summary.seconds:,.1f} worker seconds, "
            f"{summary.seconds / pairs:.2f} per pair",
            "folder": summary.folder,
        }
    )
