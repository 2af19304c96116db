"""Commands of `cc-train` that only SCORER has."""

from __future__ import annotations

from typing import Any

import click

from cc_prep.terminal import echo
from cc_train.options import run_folder_option


@click.command("import-scorer")
@click.argument("file")
@click.option("--vocabulary", required=True, metavar="FILE", help="Its vocab.json: {word: id}.")
@run_folder_option
@click.option(
    "--heads",
    type=click.IntRange(1),
    help="Number of attention heads of its encoder, where FILE does not state it.",
)
@click.option(
    "--decoder-heads",
    type=click.IntRange(1),
    help="Number of attention heads of its decoder, where FILE does not state it.",
)
@click.option(
    "--backbone-weights",
    metavar="FILE",
    help="torchvision's ResNet-101 (V1); with it the run also captions images, not only stored "
    "features.",
)
def import_scorer(**options: Any) -> None:
    """Makes a run of a checkpoint of SCORER's public code.

    Only tensors are read; nothing in the file is executed. Tensors that are not used are named.

    \b
    Example:
      cc-train import-scorer scorer_checkpoint_10000.pt --vocabulary vocab.json --out runs/scorer \\
          --backbone-weights resnet101.pth
    """
    from pathlib import Path

    from cc_train.systems.scorer import import_checkpoint

    run = Path(options.pop("run"))
    for line in import_checkpoint.make_run(run=run, **options):
        echo(line)
    echo(f"Try: cc-train evaluate {run} --shards 'out/clevr/shards/test-*.tar'")
