"""`python -m tools.zoo`: keeps our measured results as rows, and makes docs/zoo.md of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from cc_prep.errors import UserError
from cc_prep.terminal import echo
from tools.zoo import page, rows


@click.group()
def zoo() -> None:
    """Keeps measured results as rows, with the files that prove them, and makes a page of them."""


zoo_option = click.option(
    "--zoo",
    "folder",
    default="zoo",
    show_default=True,
    metavar="DIR",
    help="The folder of the rows.",
)


@zoo.command("add")
@click.argument("evaluation", metavar="EVALUATION")
@click.option("--name", required=True, help="The row's folder in the zoo.")
@click.option("--system", required=True, help="Name of the system in the table.")
@click.option("--dataset", required=True, help="clevr, spot, …, or the title of other data.")
@click.option(
    "--command", required=True, help="The commands that reproduce the row from raw files."
)
@click.option(
    "--run", metavar="RUN", help="The training, if we trained it: settings, log, weights."
)
@click.option("--weights", metavar="PLACE", help="Where others find RUN's weights.")
@click.option("--note", default="", help="A sentence below the table.")
@click.option(
    "--with-references", is_flag=True, help="Also store the references (if they may be public)."
)
@click.option(
    "--captions", metavar="FILE", help="The file that was scored; only its SHA-256 is stored."
)
@click.option("--captions-at", metavar="PLACE", help="Where its authors publish that file.")
@click.option("--replace", is_flag=True, help="Replace an existing row of this name.")
@zoo_option
def zoo_add(**options: Any) -> None:
    """Adds a row: EVALUATION is a folder that `cc-train evaluate` wrote.

    With --run it is the row of a system that we trained, and EVALUATION must be of the weights of
    RUN's best checkpoint. Without it, it is the row of captions of others,
    which we scored again; they are copied, unless --captions names the file and --captions-at the
    place where it is published.

    \b
    Example:
      python -m tools.zoo add out/spot/stage2/evaluation --run out/spot/stage2 --name procap-spot \\
          --system ProCap --dataset spot --command 'make zoo-row DATASET=spot SYSTEM=procap'
    """
    echo(page.add(**options))


@zoo.command("check")
@click.argument("name")
@click.option("--captions", metavar="FILE", required=True, help="The file that the row names.")
@click.option("--references", metavar="FILE", help="The file that cc-prep references wrote.")
@zoo_option
def zoo_check(name: str, captions: str, references: str | None, folder: str) -> None:
    """Computes the figures of a row again, from captions that are not stored in the zoo.

    \b
    Example:
      python -m tools.zoo check ddla-spot --captions ddla_rerun_predfile.json --references spot.json
    """
    path = None if references is None else Path(references)
    figures = rows.check(Path(folder), name, Path(captions), path)
    listed = ", ".join(f"{measure} {figure:.2f}" for measure, figure in figures.items())
    echo(f"{name}: {listed}, as in the zoo")


@zoo.command("page")
@click.option("--out", metavar="FILE", required=True, help="The Markdown page that is written.")
@zoo_option
def zoo_page(out: str, folder: str) -> None:
    """Writes the page of all rows. Computes BLEU-4 and CIDEr again where references are stored.

    \b
    Example:
      python -m tools.zoo page --out docs/zoo.md
    """
    page.write(Path(folder), out)
    echo(out)


def main() -> None:
    """Runs a command; a user's mistake is one line and exit code 2."""
    try:
        zoo()
    except UserError as error:
        sys.exit(_refused(error))


def _refused(error: UserError) -> int:
    echo(f"zoo: {error}", err=True)
    return 2


if __name__ == "__main__":
    main()
