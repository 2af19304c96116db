"""Options that several commands of `cc-train` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from cc_prep.errors import UserError
from cc_prep.unspaced import Words

if TYPE_CHECKING:
    from cc_train.baselines.captioner import ChatCaptioner

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


_OF_A_SERVER = (
    click.option(
        "--url",
        metavar="URL",
        help="Ask a model of this server in place of RUN, as `cc-train baseline` does; both images "
        "are sent there.",
    ),
    click.option("--model", metavar="NAME", help="With --url: the name of the model there."),
    click.option("--prompt", metavar="TEXT", help="With --url: the question."),
    click.option(
        "--key-variable",
        metavar="NAME",
        help="With --url: the environment variable that holds the key [default: OPENAI_API_KEY].",
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="With --url: a decoding parameter of the request (repeatable).",
    ),
    click.option(
        "--no-probe",
        is_flag=True,
        help="With --url: do not look first whether the model sees two images, in their order.",
    ),
)


def server_options(command: Command) -> Command:
    """Options by which two images go to a model of a server; `chat_captioner` takes them."""
    for option in reversed(_OF_A_SERVER):
        command = option(command)
    return command


def chat_captioner(
    url: str | None,
    model: str | None,
    prompt: str | None,
    key_variable: str | None,
    overrides: Sequence[str],
    no_probe: bool,
) -> ChatCaptioner | None:
    """The captioner that these options name; None without them. Raises UserError."""
    if url is None:
        if model is not None or prompt is not None or key_variable or overrides or no_probe:
            what = "--model, --prompt, --key-variable, --set and --no-probe"
            raise UserError(f"{what} are of a server", "Give --url too")
        return None
    if model is None:
        raise UserError("--url without --model", "Name a model that the server has: --model NAME")
    from cc_prep.console import on_stderr
    from cc_train.baselines import server
    from cc_train.baselines.captioner import ChatCaptioner

    return ChatCaptioner(
        url,
        model,
        prompt=prompt,
        key_variable=key_variable or server.KEY_VARIABLE,
        overrides=overrides,
        say=on_stderr().print,
        probe=not no_probe,
    )


def shards_option(what: str, required: bool = False) -> Callable[[Command], Command]:
    """`--shards`, which takes several patterns.

    Args:
        what: What the shards are, for the help.
    """
    return click.option(
        "--shards", multiple=True, required=required, metavar="SHARDS", help=f"{what}: {SHARDS}."
    )


def judge_options(required: bool) -> Callable[[Command], Command]:
    """The options that name a judge and how it is asked.

    Args:
        required: Whether there has to be a judge.
    """
    options = (
        click.option(
            "--judge",
            required=required,
            metavar="MODEL",
            help="The language model that judges, by its name on the server.",
        ),
        click.option(
            "--judge-url",
            required=required,
            metavar="URL",
            help="Its OpenAI-compatible server: http://localhost:8000/v1.",
        ),
        click.option(
            "--judge-protocol",
            type=click.Choice(["differences", "c3-bench", "diffspot"]),
            help="What it is asked, and how its answers count [default: differences].",
        ),
        click.option(
            "--judge-prompt",
            metavar="FILE",
            help="The benchmark's own prompt, for c3-bench and diffspot; default: our words.",
        ),
        click.option(
            "--judge-set",
            multiple=True,
            metavar="KEY=VALUE",
            help="A key of its requests, such as max_tokens=16384; null omits one (repeatable).",
        ),
        click.option(
            "--judge-threads", type=click.IntRange(1, 64), help="Requests at a time [default: 1]."
        ),
        click.option(
            "--judge-seed",
            type=click.IntRange(0),
            help="Of the orders in which options and statements are shown [default: 0].",
        ),
        click.option(
            "--judge-key-variable",
            metavar="NAME",
            help="The environment variable with its server's key [default: OPENAI_API_KEY].",
        ),
    )

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated
