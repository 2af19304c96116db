"""Options that several commands of `cc-train` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
SHARDS = "a path, glob, brace expression or URL (repeatable)"

device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda", "gpu"]),
    default="auto",
    show_default=True,
    callback=lambda _, __, device: "cuda" if device == "gpu" else device,
    help="Where the network runs; gpu is another name of cuda.",
)
beams_option = click.option(
    "--beams",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Width of the beam search; 1 is greedy decoding.",
)


def shards_option(what: str, required: bool = False) -> Callable[[Command], Command]:
    """`--shards`, which takes several patterns. what: what the shards are, for the help."""
    return click.option(
        "--shards", multiple=True, required=required, metavar="SHARDS", help=f"{what}: {SHARDS}."
    )
