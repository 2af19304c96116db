"""Commands of `cc-train` that show results: compare, imagine, report, serve."""

from __future__ import annotations

from typing import Any

import click

from cc_prep.terminal import echo
from cc_train.options import device_option, shards_option


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN…]")
@click.option(
    "--dataset", metavar="NAME", help="Add published figures of this data set: clevr, spot, …"
)
@click.option("--mixed", is_flag=True, help="Do not refuse scores with different signatures.")
@click.option("--out", metavar="FILE", help="Also write an HTML page, with bars.")
@click.option("--latex", is_flag=True, help="Print LaTeX tables (package booktabs).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(**options: Any) -> None:
    """Prints the scores of several runs, or folders of evaluate, side by side.

    Scores with different signatures are refused. For runs that were scored on the same pairs as the
    first one, the gain in CIDEr over the first is printed, with an interval; for rendered pairs
    also how many more captions are exactly right. NAME=RUN,RUN,… names several runs of one system:
    mean, standard deviation, and an interval over pairs and runs are printed. --dataset adds the
    figures that papers report (docs/published.md).

    \b
    Examples:
      cc-train compare runs/a runs/b theirs.json.evaluation --dataset clevr --out compare.html
      cc-train compare procap=runs/a0,runs/a1,runs/a2 scorer=runs/b0,runs/b1,runs/b2 --latex
      cc-train compare --dataset spot --latex
    """
    from cc_train.report.comparison import compare

    compare(**options)


@click.command()
@click.argument("run")
@click.option(
    "--out",
    metavar="FILE",
    help="The page that is written; default: RUN/report.html, or NAME.report.html in the current "
    "folder for a captioner of the package or the hub.",
)
@shards_option("Shards whose samples are shown")
@click.option(
    "--evaluation",
    metavar="DIR",
    help="A folder that `cc-train evaluate --out` wrote; default: RUN/evaluation, or "
    "NAME.evaluation for a captioner of the package or the hub.",
)
def report(run: str, out: str | None, shards: tuple[str, ...], evaluation: str | None) -> None:
    """Writes an HTML page about a run: curves, reconstructions, captions beside their references.

    \b
    Example:
      cc-train report out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
    """
    from cc_train.report import write

    echo(write(run, out, shards, evaluation))


@click.command()
@click.argument("run")
@click.argument("before")
@click.argument("after")
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    help="The picture that is written: .png, .jpg or .webp.",
)
@click.option(
    "--stage1", metavar="RUN", help="Add a second row: the frames that this stage 1 imagines."
)
@device_option
def imagine(**options: Any) -> None:
    """Draws the frames that the captioner RUN imagines between BEFORE and AFTER.

    From left to right: the image before; the same image decoded from its tokens, which is the best
    that the VQGAN can draw; the imagined frames, decoded from the states of the procedure queries
    by stage 1's head and the VQGAN; the image after, decoded from its tokens; the image after.
    Stage 2 continues to train the encoder, so its frames can differ from those of stage 1: --stage1
    adds a row with the latter, for the same images and RUN's sentence.

    \b
    Example:
      cc-train imagine out/clevr/stage2 before.png after.png --out strip.png \\
          --stage1 out/clevr/stage1
    """
    from cc_train.report.strips import write

    echo(write(**options))


@click.command()
@click.argument("run", default="captioner-mini")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7860,
    show_default=True,
    help="The port to listen on; 0 takes a free one.",
)
@click.option(
    "--examples",
    metavar="FILE|DIR",
    help="Pairs that the page offers; default: six rendered pairs of the package.",
)
@click.option(
    "--collect", metavar="DIR", help="Store the captions that are entered in this folder."
)
@click.option("--pairs", metavar="FILE|DIR", help="With --collect: pairs to be captioned.")
@click.option(
    "--fetch", is_flag=True, help="Let the server ask the addresses that these lists name."
)
@device_option
def serve(**options: Any) -> None:
    """Serves a page for the browser that captions two images.

    RUN is the folder of a training or of an exported captioner, or captioner-mini. The page shows
    beams, confidence and, if the captioner provides them, the attention of each word and the
    imagined frames. No request leaves the machine, unless --fetch allows it. --collect makes a data
    set of your own pairs: a table (pairs.jsonl) and LevirCCcaptions.json. --examples and --pairs
    take what `cc-train caption --pairs` takes. Needs the extra [serve].

    \b
    Examples:
      cc-train serve
      cc-train serve out/clevr/stage2 --collect data/own --pairs unlabelled/
    """
    from cc_prep import extras
    from cc_prep.errors import UserError

    for module in ("starlette", "uvicorn"):
        extras.require(module, "cc-train serve", "serve")
    from cc_train.serve.command import serve

    if options["pairs"] is not None and options["collect"] is None:
        raise UserError("--pairs without --collect", "Give the folder that captions go into too")
    serve(say=echo, **options)


COMMANDS = (compare, imagine, report, serve)
