"""The commands of `cc-prep` that look at raw data and set it up: init, split, references."""

from __future__ import annotations

from typing import Any

import click

from pipelines.job_commands import dataset_options


@click.command()
@click.argument("name")
@click.option("--root", required=True, metavar="DIR", help="Where the raw data lies.")
@click.option("--out", metavar="FILE", help="The manifest; default: manifests/NAME.yaml.")
def init(name: str, root: str, out: str | None) -> None:
    """Looks at the folder DIR, recognises its layout and writes the manifest NAME.

    Knows the public data sets, a table (pairs.csv, .jsonl, .parquet), folders before/ and after/,
    and videos; of anything else it says what it found and what is missing.

    \b
    Example:
      cc-prep init mine --root /data/mine && cc-prep inspect mine
    """
    from pathlib import Path

    from cc_prep import storage
    from cc_prep.datasets import detect_layout
    from cc_prep.errors import UserError

    target = Path(out or f"manifests/{name}.yaml")
    if target.exists():
        raise UserError(f"{target}: is there already", "Give another NAME or --out, or remove it")
    found = detect_layout.recognise(name, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    storage.write_bytes(str(target), found.text.encode())
    counts = ", ".join(f"{split} {count:,}" for split, count in found.pairs.items())
    click.echo(f"{target}: {found.settings.layout}, pairs: {counts}")
    for fault in found.faults[: detect_layout.MOST_LISTED]:
        click.echo(f"fault: {fault}")
    more = len(found.faults) - detect_layout.MOST_LISTED
    if more > 0:
        click.echo(f"and {more} more faults")
    click.echo(f"Next: cc-prep inspect {name if out is None else out}")


@click.command()
@dataset_options
@click.option(
    "--shares",
    default="train=85,val=5,test=10",
    show_default=True,
    metavar="SPLIT=SHARE,…",
    help="The splits and how large they are to each other.",
)
@click.option("--group", "column", metavar="COLUMN", help="Pairs that agree in it stay together.")
@click.option(
    "--group-by",
    "pattern",
    metavar="REGEX",
    help="Pairs in whose path of before it finds the same stay together.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--distance",
    default="4",
    show_default=True,
    metavar="BITS|none",
    help="Pairs with images so near by perceptual hash (of 64 bits) stay together.",
)
@click.option(
    "--out", default="splits.json", show_default=True, metavar="FILE", help="In the root."
)
def split(**options: Any) -> None:
    """Splits DATASET's pairs, a table's or those of folders, that come without splits.

    No near-duplicate image lands in two splits. Name the file it writes as `split_file` in the
    manifest; reports say how the splits were made.

    \b
    Example:
      cc-prep split mine --shares train=80,test=20 --group-by '^site(\\d+)'
    """
    from pipelines import data_set_up

    data_set_up.split(**options)


@click.command()
@dataset_options
@click.option("--split", "splits", multiple=True, help="Only this split (repeatable).")
@click.option("--out", required=True, metavar="FILE", help="Where the JSON goes.")
def references(**options: Any) -> None:
    """Writes DATASET's captions as a reference file in COCO's form, with the official ids.

    For `cc-train evaluate --predictions`, and for the official scripts.

    \b
    Example:
      cc-prep references clevr --split test --out clevr-test.json
    """
    from pipelines import data_set_up

    data_set_up.references(**options)


COMMANDS: tuple[click.Command, ...] = (init, split, references)
