"""Commands of `cc-train` that show results: compare, imagine, published, report, serve, zoo."""

from __future__ import annotations

from typing import Any

import click

from cc_train.options import device_option


@click.command()
@click.argument("places", nargs=-1, metavar="[RUN…]")
@click.option("--dataset", metavar="NAME", help="Add published figures of it: clevr, spot, …")
@click.option("--mixed", is_flag=True, help="Show scores with different signatures all the same.")
@click.option("--out", metavar="FILE", help="Also write a page, with bars.")
@click.option("--latex", is_flag=True, help="Print LaTeX tables, for booktabs.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(**options: Any) -> None:
    """Prints the scores of several runs, or folders of evaluate, side by side.

    Scores with different signatures are refused. Where two were scored over the same pairs it says
    how much CIDEr is gained over the first, with an interval, and of rendered pairs how many more
    captions are exactly right. NAME=RUN,RUN,… stands for several runs of one system: their mean,
    standard deviation, and an interval over pairs and runs. --dataset adds what papers report
    (docs/published.md).

    \b
    Examples:
      cc-train compare runs/a runs/b theirs.json.evaluation --dataset clevr --out compare.html
      cc-train compare procap=runs/a0,runs/a1,runs/a2 scorer=runs/b0,runs/b1,runs/b2 --latex
      cc-train compare --dataset spot --latex
    """
    from cc_train.report.comparison import compare

    compare(**options)


@click.command()
@click.option("--out", metavar="FILE", required=True, help="The page, as Markdown.")
def published(out: str) -> None:
    """Writes a page of the protocols and of the figures that papers report.

    \b
    Example:
      cc-train published --out docs/published.md
    """
    from cc_train.report.published_page import write

    write(out)
    click.echo(out)


@click.command()
@click.argument("run")
@click.option("--out", metavar="FILE", help="The page; default: RUN/report.html.")
@click.option("--shards", multiple=True, metavar="SHARDS", help="Show these samples' images.")
@click.option("--evaluation", metavar="DIR", help="What `evaluate --out` wrote; see there.")
def report(run: str, out: str | None, shards: tuple[str, ...], evaluation: str | None) -> None:
    """Draws a page of a run: curves, reconstructions, captions beside their references.

    \b
    Example:
      cc-train report out/clevr/stage2 --shards 'out/clevr/shards/test-*.tar'
    """
    from cc_train.report import write

    click.echo(write(run, out, shards, evaluation))


@click.command()
@click.argument("run")
@click.argument("before")
@click.argument("after")
@click.option("--out", metavar="FILE", required=True, help="The picture: .png, .jpg or .webp.")
@click.option("--stage1", metavar="RUN", help="A second row: what this stage 1 imagines.")
@device_option
def imagine(**options: Any) -> None:
    """Draws the frames that the captioner RUN imagines between BEFORE and AFTER.

    From left to right: before; before as its tokens show it, which is the best that the VQGAN can
    draw; the imagined frames, decoded from the states of the procedure queries by stage 1's head
    and the VQGAN; after by its tokens; after. Stage 2 trains the encoder on, so the frames need not
    stay what stage 1 drew: --stage1 adds a row of that, for the same images and RUN's sentence.

    \b
    Example:
      cc-train imagine out/clevr/stage2 before.png after.png --out strip.png \\
          --stage1 out/clevr/stage1
    """
    from cc_train.report.strips import write

    click.echo(write(**options))


@click.command()
@click.argument("run", default="captioner-mini")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True)
@click.option("--examples", metavar="FILE|DIR", help="Pairs that the page offers; default: ours.")
@click.option("--collect", metavar="DIR", help="Write captions of own pairs into this folder.")
@click.option("--pairs", metavar="FILE|DIR", help="Pairs that wait for captions, for --collect.")
@device_option
def serve(**options: Any) -> None:
    """Shows a page in the browser: drop two images, get the sentence.

    RUN is the folder of a training or of an exported captioner, or captioner-mini. The page shows
    beams, confidence, where the words look and what the captioner imagines, where it says so. No
    request leaves the machine. --collect makes a data set of own pairs: our table (pairs.jsonl) and
    LevirCCcaptions.json. --examples and --pairs take what `cc-train caption --pairs` takes.

    \b
    Examples:
      cc-train serve
      cc-train serve out/clevr/stage2 --collect data/own --pairs unlabelled/
    """
    from cc_prep.errors import UserError
    from cc_train.serve.command import serve

    if options["pairs"] is not None and options["collect"] is None:
        raise UserError("--pairs without --collect", "Give the folder that captions go into too")
    serve(say=click.echo, **options)


@click.group()
def zoo() -> None:
    """Keeps what was measured, with the files that show it, and makes a page of it."""


@zoo.command("add")
@click.argument("evaluation", metavar="EVALUATION")
@click.option("--name", required=True, help="The row's folder in the zoo.")
@click.option("--system", required=True, help="What the table calls it.")
@click.option("--dataset", required=True, help="clevr, spot, …, or the title of other data.")
@click.option("--command", required=True, help="What leads to it from raw files.")
@click.option(
    "--run", metavar="RUN", help="The training, if we trained it: settings, log, weights."
)
@click.option("--weights", metavar="PLACE", help="Where RUN's weights are for others.")
@click.option("--note", default="", help="A sentence below the table.")
@click.option("--with-references", is_flag=True, help="Keep the references: they may be public.")
@click.option("--captions", metavar="FILE", help="What was scored; only its SHA-256 is kept.")
@click.option("--captions-at", metavar="PLACE", help="Where the authors publish that file.")
@click.option("--replace", is_flag=True, help="Take the place of a row of this name.")
@click.option("--zoo", "folder", default="zoo", show_default=True, metavar="DIR")
def zoo_add(**options: Any) -> None:
    """Adds a row: EVALUATION is a folder that `cc-train evaluate` wrote.

    With --run the row is one that we trained; without it, captions of others that we re-scored.
    Their captions are copied, unless --captions names the file and --captions-at its place.

    \b
    Example:
      cc-train zoo add out/spot/stage2/evaluation --run out/spot/stage2 --name procap-spot \\
          --system ProCap --dataset spot --command 'make zoo-row DATASET=spot SYSTEM=procap'
    """
    from cc_train.report.zoo_page import add

    click.echo(add(**options))


@zoo.command("check")
@click.argument("name")
@click.option("--captions", metavar="FILE", required=True, help="The file that the row names.")
@click.option("--references", metavar="FILE", help="As cc-prep references writes them.")
@click.option("--zoo", "folder", default="zoo", show_default=True, metavar="DIR")
def zoo_check(name: str, captions: str, references: str | None, folder: str) -> None:
    """Computes the figures of a row again, from captions that the zoo does not hold.

    \b
    Example:
      cc-train zoo check ddla-spot --captions ddla_rerun_predfile.json --references spot.json
    """
    from pathlib import Path

    from cc_train.report import zoo_rows

    place = None if references is None else Path(references)
    figures = zoo_rows.check(Path(folder), name, Path(captions), place)
    listed = ", ".join(f"{measure} {figure:.2f}" for measure, figure in figures.items())
    click.echo(f"{name}: {listed}, as in the zoo")


@zoo.command("page")
@click.option("--out", metavar="FILE", required=True, help="The page, as Markdown.")
@click.option("--zoo", "folder", default="zoo", show_default=True, metavar="DIR")
def zoo_page(out: str, folder: str) -> None:
    """Makes the page of all rows, and computes BLEU-4 and CIDEr again where references are kept.

    \b
    Example:
      cc-train zoo page --out docs/zoo.md
    """
    from pathlib import Path

    from cc_train.report.zoo_page import write

    write(Path(folder), out)
    click.echo(out)


COMMANDS = (compare, imagine, published, report, serve, zoo)
