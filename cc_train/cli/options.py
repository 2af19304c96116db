"""Options that several commands of `cc-train` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from cc_prep.unspaced import Words

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
decode_option = click.option(
    "--decode",
    type=click.Choice(["best", "consensus"]),
    default="best",
    show_default=True,
    help="Which caption of several beams: the likeliest, or the one that agrees most with all.",
)
run_folder_option = click.option(
    "--out", "run", required=True, metavar="RUN", help="The run's folder."
)
protocol_option = click.option(
    "--protocol",
    metavar="NAME",
    help="Check that pairs and references are those of this protocol: spot-single, levir-cc, …",
)
words_option = click.option(
    "--words",
    type=click.Choice(get_args(Words)),
    help="How scores split captions into words; characters: each character of Chinese, Japanese, "
    "Thai and the like is one [default: as RUN was trained; else treebank].",
)
json_scores_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the scores as JSON."
)


def shards_option(what: str, required: bool = False) -> Callable[[Command], Command]:
    """`--shards`, which takes several patterns.

    Args:
        what: What the shards are, for the help.
    """
    return click.option(
        "--shards", multiple=True, required=required, metavar="SHARDS", help=f"{what}: {SHARDS}."
    )
