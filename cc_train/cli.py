"""`cc-train`: the trainer's command line. What a command needs is imported inside it."""

from __future__ import annotations

import inspect
import multiprocessing
import os
import sys
from contextlib import nullcontext
from typing import Any, NoReturn

import click

from cc_prep import __version__
from cc_prep.errors import JobFailed, LoaderWorkerDied, UserError
from cc_prep.interrupts import STOPPED, interruptible
from cc_prep.models.cpu.allocator import keep_freed_memory
from cc_prep.terminal import echo, with_homes
from cc_train import page_commands, systems
from cc_train.baselines import commands as baseline_commands
from cc_train.options import (
    SHARDS,
    beams_option,
    device_option,
    json_scores_option,
    protocol_option,
    shards_option,
    words_option,
)
from cc_train.sharing import commands as sharing_commands


class _Commands(click.Group):
    """The commands below, and those of the table of systems.

    Each of them, when it is stopped, ends with a line of ours in place of click's.
    """

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            raise JobFailed(STOPPED) from None

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(context, with_homes(args))

    def list_commands(self, context: click.Context) -> list[str]:
        return [*systems.names(), *super().list_commands(context), *systems.commands()]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in systems.names():
            return _training(systems.get(name))
        if name in systems.commands():
            return systems.command(name)
        return super().get_command(context, name)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cc-train")
def cli() -> None:
    """Trains on the shards that cc-prep makes, evaluates and captions.

    \b
    Example:
      cc-train stage1 --config clevr --shards 'out/clevr/shards/train-*.tar' --out out/clevr/stage1
    """


def main() -> None:
    """Runs the command: exit code 2 for a user's mistake, 1 when the work itself failed."""
    keep_freed_memory()
    try:
        code = _exit_code()
    except LoaderWorkerDied as error:
        # The usual end of the interpreter crashed in one of five trials: torch hears of each
        # worker's death by a signal, also while the interpreter is being taken apart.
        echo(f"cc-train: {error}", err=True)
        _leave(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        # Started by torchrun. A thread of gloo's may still let go of its last tensors, for which
        # it asks the interpreter. If that is being taken apart by then, the process is aborted.
        _leave(code)
    sys.exit(code)


def _exit_code() -> int:
    # A rank that waits for others does not get to a handler; torchrun's SIGTERM has to end it.
    stoppable = nullcontext() if int(os.environ.get("WORLD_SIZE", "1")) > 1 else interruptible()
    try:
        with stoppable:
            cli.main(standalone_mode=False)
    except click.Abort:  # stopped before the command was chosen
        echo(f"cc-train: {STOPPED}", err=True)
        return 1
    except click.ClickException as error:
        error.show()
        if "extra argument" in error.message and ".tar" in error.message:
            # The first name went to --shards, the others to nothing.
            echo("The shell has replaced a pattern by names. Quote it: "
                       "--shards 'out/shards/train-*.tar'", err=True)  # fmt: skip
        return error.exit_code
    except UserError as error:
        echo(f"cc-train: {error}", err=True)
        return 2
    except BrokenPipeError:  # nobody reads on, as with `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except LoaderWorkerDied:  # a JobFailed too, but main ends it in its own way
        raise
    except (JobFailed, OSError) as error:
        code = getattr(error, "exit_code", None)  # the first of several processes says why
        if code is None:
            echo(f"cc-train: {error}", err=True)
        return code or 1
    return 0


def _leave(code: int) -> NoReturn:
    """Ends at once, the loader workers with it."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


RECIPES = "clip4idc-mini, vqgan-mini, vqgan-mini-f8"  # configs.recipes(), which imports more
TRAINING_OPTIONS: list[click.Parameter] = [
    click.Option(
        ["--shards"],
        multiple=True,
        required=True,
        metavar="SHARDS",
        help=f"Shards to train on: {SHARDS}.",
    ),
    click.Option(["--out", "run"], required=True, metavar="RUN", help="The run's folder."),
    click.Option(
        ["--config"],
        metavar="NAME|FILE",
        help="Settings: a manifest (name or file), a YAML file of settings, or a recipe of the "
        f"package ({RECIPES}). Without it all settings have their defaults.",
    ),
    click.Option(
        ["--init"], metavar="PATH", help="A run or weights to start from, as described above."
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
VALID = click.Option(
    ["--valid"],
    multiple=True,
    metavar="SHARDS",
    help=f"Shards to validate on: {SHARDS}. Default: some of the scenes in --shards "
    "(validation_split.share and validation_split.scenes).",
)

DRY_RUN = click.Option(
    ["--dry-run"],
    is_flag=True,
    help="Print how much memory the training would take, and stop.",
)


def _training(system: systems.System) -> click.Command:
    """The command that trains a system."""
    options = [*TRAINING_OPTIONS, *([VALID] if system.valid else [])]
    options += [DRY_RUN] if system.dry_run else []

    def run(dry_run: bool = False, **options: Any) -> None:
        from cc_train.commands import train

        if dry_run:
            names = ("config", "steps", "overrides")
            train.dry_run(system, **{name: options[name] for name in names})
        else:
            train.train(system, **options)

    return click.Command(
        system.name, params=options, help=inspect.cleandoc(system.help), callback=run
    )


@cli.command()
@click.argument("run", required=False)
@shards_option("Training shards of the split")
@click.option(
    "--predictions",
    multiple=True,
    metavar="FILE|DIR",
    help="Score these predictions, of any system, in place of RUN's (repeatable).",
)
@click.option("--references", metavar="FILE", help="References for --predictions: COCO or JSON.")
@click.option("--types", metavar="FILE", help="Types of change for --predictions: {type: [ids]}.")
@click.option(
    "--facts", metavar="FILE", help="What truly changed: the facts.json of a rendered data set."
)
@click.option(
    "--predicted-only", is_flag=True, help="Leave out pairs without a prediction, as COCO does."
)
@protocol_option
@words_option
@click.option(
    "--mask-predictions",
    metavar="DIR",
    help="Score the masks in this folder (PNGs of class ids), of any system.",
)
@click.option("--mask-references", metavar="DIR", help="The true masks, with the same file names.")
@click.option(
    "--classes",
    type=click.IntRange(2, 255),
    help="Number of mask classes, including the unchanged class; default: 2 or 3, inferred from "
    "the pixel values.",
)
@click.option(
    "--out",
    metavar="DIR",
    help="The folder that is written; default: RUN/evaluation, or NAME.evaluation for predictions "
    "and for a captioner of the package or the hub.",
)
@beams_option
@device_option
@json_scores_option
def evaluate(**options: Any) -> None:
    """Scores RUN's captions, or any system's, against references.

    Computes BLEU-1..4, METEOR, ROUGE-L, CIDEr and SPICE for all pairs, for the changed and the
    unchanged ones, and for each type of change; METEOR and SPICE need Java. Predictions are always
    written. For rendered pairs, what the captions state is checked first: changed or not, type of
    change, looks of the object. Their shards hold the facts; with --references, give --facts.
    --predictions takes COCO's results, {id: caption}, and the files of SCORER, CLIP4IDC and ProCap.
    The last line is the signature of the scores: scores with different signatures are not
    comparable. Masks are written and scored too where captioner and shards have them;
    --mask-predictions scores the masks of any system.

    \b
    Examples:
      cc-train evaluate out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
      cc-train evaluate --predictions theirs.json --references test.json --out theirs
      cc-train evaluate --predictions theirs.json --references test.json \\
          --facts data/synth/facts.json
      cc-train evaluate --predictions theirs.json --references spot.json --protocol spot-single
      cc-train evaluate --mask-predictions theirs --mask-references labels --classes 3
    """
    from cc_train.commands.evaluate import Options
    from cc_train.commands.evaluate import evaluate as run

    run(Options(**options))


@cli.command()
@click.argument("paths", nargs=-1, metavar="[RUN] [BEFORE AFTER]")
@click.option(
    "--pairs", metavar="FILE|DIR", help="A CSV or JSON-lines list, or a folder: see above."
)
@shards_option("Training shards whose samples are captioned, with their references")
@click.option(
    "--limit", type=click.IntRange(1), help="With --shards: caption at most this many samples."
)
@beams_option
@device_option
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per pair, with all beams."
)
@click.option(
    "--mask",
    metavar="FILE",
    help="For one pair: write the predicted mask as a PNG of class ids.",
)
@click.option(
    "--overlay", metavar="FILE", help="For one pair: write both images with the mask over them."
)
def caption(**options: Any) -> None:
    """Prints what changed from BEFORE to AFTER, as a sentence.

    RUN is the folder of a training or of an exported captioner. Without RUN, captioner-mini is
    used, which comes with the package. A calibrated captioner adds the probability that its
    sentence is right; it is known for greedy sentences alone, so not with --beams above 1.

    --pairs captions many pairs: a list with columns `before` and `after` (paths relative to the
    list), a folder with `before/NAME` and `after/NAME`, or one with `NAME_before.*` and
    `NAME_after.*`. For a pair without readable images, the error is printed on standard error (with
    --json also a record in its place), and the exit code is 1.

    \b
    Examples:
      cc-train caption before.png after.png
      cc-train caption out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar' --limit 3
      cc-train caption out/pairs/chain before.png after.png --mask mask.png --overlay seen.jpg
    """
    from cc_train.commands.caption import Options
    from cc_train.commands.caption import caption as run

    run(Options(**options))


for _command in (*page_commands.COMMANDS, sharing_commands.export, baseline_commands.baseline):
    cli.add_command(_command)
