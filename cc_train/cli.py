"""`cc-train`: the trainer's command line. What a command needs is imported inside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

from cc_prep import __version__
from cc_prep.errors import JobFailed, UserError
from cc_prep.models.cpu.allocator import keep_freed_memory


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="cc-train")
def cli() -> None:
    """Trains on the shards that cc-prep makes.

    \b
    Example:
      cc-train vqgan --shards 'out/clevr/sequences/train-*.tar' --out runs/vqgan
    """


def main() -> None:
    """Runs the command: exit code 2 for a user's mistake, 1 when the work itself failed."""
    keep_freed_memory()
    try:
        cli()
    except UserError as error:
        click.echo(f"cc-train: {error}", err=True)
        sys.exit(2)
    except (JobFailed, OSError) as error:
        click.echo(f"cc-train: {error}", err=True)
        sys.exit(1)


def training_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every training."""
    for option in (
        click.option(
            "--resume",
            type=click.Choice(["auto", "never"]),
            default="auto",
            show_default=True,
            help="Go on from the last checkpoint in RUN, or refuse a folder that has a run.",
        ),
        click.option(
            "--set",
            "overrides",
            multiple=True,
            metavar="KEY=VALUE",
            help="Override a setting, such as loop.batch_size=8 (repeatable).",
        ),
        click.option("--steps", type=click.IntRange(1), help="Short for --set loop.steps=N."),
        click.option("--init", metavar="PLACE", help="What to start from: see above."),
        click.option(
            "--config",
            metavar="NAME|FILE",
            help="Settings: a manifest that has some, or a YAML file; default: ours.",
        ),
        click.option("--out", "run", required=True, metavar="RUN", help="The run's folder."),
        click.option(
            "--shards",
            multiple=True,
            required=True,
            metavar="SHARDS",
            help="Shards: a path, glob, brace expression or URL (repeatable).",
        ),
    ):
        command = option(command)
    return command


VALID = click.option(
    "--valid",
    multiple=True,
    metavar="SHARDS",
    help="Shards to validate on; default: hold_out.share of the scenes in --shards.",
)


@cli.command()
@training_options
def vqgan(**options: Any) -> None:
    """Trains a VQGAN on all frames of sequence shards.

    L1, a perceptual distance and a patch discriminator; RUN gets checkpoints, a log as JSON lines
    and for TensorBoard, and pictures of reconstructions. The settings and their defaults are in
    docs/training.md.

    \b
    Example:
      cc-train vqgan --shards 'out/clevr/sequences/train-*.tar' --out runs/vqgan --steps 20000
    """
    from cc_train.systems.vqgan.recipe import Settings, train

    _train(Settings, train, **options)


@cli.command()
@training_options
def clip4idc(**options: Any) -> None:
    """Trains a CLIP4IDC on the pairs and captions of sequence shards.

    From scratch, or from CLIP's or CLIP4IDC's weights with --init. The validation measures are
    R@1, R@5 and R@10 both ways on held-out pairs.

    \b
    Example:
      cc-train clip4idc --shards 'out/clevr/sequences/train-*.tar' --out runs/clip4idc
    """
    from cc_train.systems.clip4idc.recipe import Settings, train

    _train(Settings, train, **options)


@cli.command()
@training_options
@VALID
def stage1(**options: Any) -> None:
    """Trains ProCap's procedure encoder on training shards.

    Masked reconstruction of the frames' tokens, whether caption and frames belong together, and
    whether the frames are in order. --init takes CLIP's weights (ViT-B-32.pt), whose first blocks
    the encoder starts from. Several GPUs: torchrun --nproc-per-node N -m cc_train stage1 …

    \b
    Example:
      cc-train stage1 --config clevr --shards 'out/clevr/shards/train-*.tar' --out out/clevr/stage1
    """
    from cc_train.systems.procap.stage1 import Settings, train

    _train(Settings, train, section="stage1", **options)


@cli.command()
@training_options
@VALID
def stage2(**options: Any) -> None:
    """Trains a captioner on training shards: procedure queries and a decoder.

    --init takes the folder of a stage-1 run; without it the encoder starts from nothing. The best
    checkpoint is that of the highest CIDEr in validation.

    \b
    Example:
      cc-train stage2 --config clevr --shards 'out/clevr/shards/train-*.tar' \\
          --valid 'out/clevr/shards/val-*.tar' --init out/clevr/stage1 --out out/clevr/stage2
    """
    from cc_train.systems.procap.stage2 import Settings, train

    _train(Settings, train, section="stage2", **options)


@cli.command()
@click.argument("run")
@click.option("--shards", multiple=True, required=True, metavar="SHARDS", help="Held-out shards.")
@click.option("--name", required=True, help="Name of the file and its card.")
@click.option("--out", required=True, metavar="DIR", help="Where they go.")
def pack(run: str, shards: tuple[str, ...], name: str, out: str) -> None:
    """Packs RUN's best network as float16 safetensors, with a card of what it was measured to do.

    SHARDS must be sequences that the training did not see.

    \b
    Example:
      cc-train pack runs/vqgan --shards 'out/held/sequences/*.tar' --name my-vqgan --out weights
    """
    from pathlib import Path

    from cc_train import packing

    file = packing.pack(Path(run), shards, name, Path(out))
    click.echo(f"{file}, {file.with_suffix('.md')}")


@cli.command()
@click.argument("run", required=False)
@click.option("--shards", multiple=True, metavar="SHARDS", help="Training shards of the split.")
@click.option(
    "--predictions",
    multiple=True,
    metavar="FILE|DIR",
    help="Score these, of any system, in place of RUN's (repeatable).",
)
@click.option("--references", metavar="FILE", help="References for --predictions: COCO or JSON.")
@click.option("--types", metavar="FILE", help="Type mapping for --predictions: {type: [ids]}.")
@click.option(
    "--predicted-only", is_flag=True, help="Leave out pairs without a prediction, as COCO does."
)
@click.option("--out", metavar="DIR", help="Where the files go; default: RUN/evaluation.")
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="1 is greedy.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def evaluate(**options: Any) -> None:
    """Scores RUN's captions, or any system's, against references.

    BLEU-1..4, METEOR, ROUGE-L, CIDEr and SPICE of all pairs, of the changed and the unchanged ones
    and of each type of change; METEOR and SPICE need Java. Predictions are always written.
    --predictions takes COCO's results, {id: caption}, and the files of SCORER, CLIP4IDC and ProCap.

    \b
    Examples:
      cc-train evaluate out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
      cc-train evaluate --predictions theirs.json --references test.json --out theirs
    """
    from cc_train.commands import evaluate

    evaluate(**options)


@cli.command()
@click.argument("places", nargs=-1, required=True, metavar="RUN…")
@click.option("--dataset", metavar="NAME", help="Add published figures of it: clevr, spot, …")
@click.option("--out", metavar="FILE", help="Also write a page, with bars.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(**options: Any) -> None:
    """Prints the scores of several runs, or folders of evaluate, side by side.

    Where two were scored over the same pairs it says how much CIDEr is gained over the first, with
    an interval. --dataset adds what papers report (cc_train/evaluation/published.yaml).

    \b
    Example:
      cc-train compare runs/a runs/b theirs.json.evaluation --dataset clevr --out compare.html
    """
    from cc_train.report.comparison import compare

    compare(**options)


@cli.command()
@click.argument("run")
@click.argument("images", nargs=-1, metavar="[BEFORE AFTER]")
@click.option(
    "--pairs", metavar="FILE|DIR", help="A CSV or JSON-lines list, or a folder: see below."
)
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="1 is greedy.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option("--json", "as_json", is_flag=True, help="A JSON line a pair, with all beams.")
def caption(**options: Any) -> None:
    """Says what changed from BEFORE to AFTER.

    With --pairs for many: a list with columns `before` and `after`, paths relative to it, or a
    folder with `before/NAME` and `after/NAME`, or with `NAME_before.*` and `NAME_after.*`.

    \b
    Example:
      cc-train caption out/clevr/stage2 before.png after.png
    """
    from cc_train.commands import caption

    caption(**options)


@cli.command("import-procap")
@click.argument("file")
@click.option("--out", "run", required=True, metavar="RUN", help="The run's folder.")
@click.option("--word2idx", metavar="FILE", help="Its word2idx.json, for a stage-2 checkpoint.")
@click.option(
    "--heads", type=click.IntRange(1), default=8, show_default=True, help="Of its decoder."
)
@click.option(
    "--length", type=click.IntRange(3), default=24, show_default=True, help="Of captions."
)
@click.option("--config", metavar="FILE", help="taming-transformers' YAML of its VQGAN.")
def import_procap(**options: Any) -> None:
    """Makes a run of ProCap's published checkpoints: dalle.pt or model.chkpt.

    Tensors only: nothing in the file is executed. Every tensor is used or named.

    \b
    Example:
      cc-train import-procap model.chkpt --word2idx word2idx.json --out runs/procap
    """
    from cc_train.commands import import_procap

    import_procap(**options)


@cli.command()
@click.argument("run")
@click.option("--out", metavar="FILE", help="The page; default: RUN/report.html.")
@click.option("--shards", multiple=True, metavar="SHARDS", help="Show these samples' images.")
def report(run: str, out: str | None, shards: tuple[str, ...]) -> None:
    """Draws a page of a run: curves, reconstructions, captions beside their references.

    \b
    Example:
      cc-train report out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
    """
    from cc_train.report import write

    click.echo(write(run, out, shards))


def _train(
    model: Any,
    train: Callable[..., dict[str, float]],
    shards: tuple[str, ...],
    run: str,
    config: str | None,
    init: str | None,
    steps: int | None,
    overrides: tuple[str, ...],
    resume: str,
    valid: tuple[str, ...] | None = None,
    section: str | None = None,
) -> None:
    from pathlib import Path

    from rich.console import Console

    from cc_train.training import configs

    if section is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("this training is for one process", "Start it without torchrun")
    given = [*overrides, *([f"loop.steps={steps}"] if steps is not None else [])]
    found = configs.load(model, config, given, section)
    if init is not None and not Path(init).exists():
        raise UserError(f"--init {init}: no such file or folder", "Look at the path")
    start = Path(init) if init is not None else None
    validated = () if valid is None else (valid,)
    console = Console(stderr=True)
    figures = train(found, shards, *validated, Path(run), start, resume, console)
    if not console.quiet:  # another rank says it
        click.echo(f"{run}: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
