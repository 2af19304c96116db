"""Commands of `cc-train` that only ProCap has."""

from __future__ import annotations

from typing import Any

import click

from cc_prep.terminal import echo
from cc_train.options import run_folder_option


@click.command("import-procap")
@click.argument("file")
@run_folder_option
@click.option("--word2idx", metavar="FILE", help="Its word2idx.json, for a stage-2 checkpoint.")
@click.option(
    "--heads",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of attention heads of its decoder.",
)
@click.option(
    "--length",
    type=click.IntRange(3),
    default=24,
    show_default=True,
    help="Maximum length of a caption, in tokens.",
)
@click.option("--config", metavar="FILE", help="taming-transformers' YAML of its VQGAN.")
def import_procap(**options: Any) -> None:
    """Makes a run of a published checkpoint of ProCap: dalle.pt or model.chkpt.

    Only tensors are read; nothing in the file is executed. Tensors that are not used are named.

    \b
    Example:
      cc-train import-procap model.chkpt --word2idx word2idx.json --out runs/procap
    """
    from pathlib import Path

    from cc_train.systems.procap import import_checkpoint
    from cc_train.text import VOCABULARY

    run = Path(options.pop("run"))
    for line in import_checkpoint.make_run(run=run, **options):
        echo(line)
    if (run / VOCABULARY).exists():
        echo(f"Try: cc-train caption {run} before.png after.png")
