"""The command that asks a multi-modal LLM what changed."""

from __future__ import annotations

from typing import Any

import click

from cc_train.options import device_option


@click.command()
@click.option(
    "--shards", multiple=True, required=True, metavar="SHARDS", help="Training shards of the split."
)
@click.option(
    "--model", required=True, metavar="FOLDER|NAME", help="A local folder; with --url, its name."
)
@click.option("--url", metavar="URL", help="An OpenAI-compatible server: http://localhost:8000/v1.")
@click.option("--out", required=True, metavar="DIR", help="Where the files go.")
@click.option(
    "--prompt", metavar="TEXT", help="Ask this; default: cc_train/baselines/prompts.yaml."
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="How words are chosen, such as max_tokens=50; null leaves a key out (repeatable).",
)
@click.option(
    "--key-variable",
    metavar="NAME",
    help="With --url: the environment's variable with the key; default: OPENAI_API_KEY.",
)
@click.option(
    "--requests-per-minute", type=click.FloatRange(0, min_open=True), help="With --url: at most."
)
@click.option(
    "--threads", type=click.IntRange(1, 64), help="With --url: requests at a time; default: 1."
)
@click.option(
    "--tries", type=click.IntRange(1), help="With --url: of a request, before the end; default: 8."
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="With --url: seconds without a byte; default: 120.",
)
@click.option(
    "--batch-size", type=click.IntRange(1), help="Of a local model: pairs at a time; default: 1."
)
@device_option
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    help="Of a local model; auto: bfloat16 on a GPU, float32 on a CPU.",
)
@click.option(
    "--cache",
    metavar="DIR",
    help="Where answers are stored, one folder a server; default: OUT/answers.",
)
@click.option("--limit", type=click.IntRange(1), help="At most so many samples, for a trial.")
@click.option(
    "--protocol", metavar="NAME", help="Check that what is scored is the named protocol's."
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def baseline(**options: Any) -> None:
    """Asks a multi-modal LLM what changed, without any training, and scores what it says.

    The model is a local folder (transformers, extra [mllm]), or one of an OpenAI-compatible server,
    which gets both images of every pair. What is asked depends on the data set. OUT gets the files
    of `cc-train evaluate`, so `cc-train compare` shows it beside trained captioners.

    Answers are stored as they come. A run that was killed goes on with the same command, and asks
    nothing again that was answered.

    \b
    Examples:
      cc-train baseline --model /models/Qwen2.5-VL-3B-Instruct \\
          --shards 'out/spot/shards/test-*.tar' --out out/spot/qwen
      cc-train baseline --url http://localhost:8000/v1 --model some-vl-model --threads 8 \\
          --shards 'out/spot/shards/test-*.tar' --out out/spot/some-vl-model
    """
    from cc_train.baselines.run import Options
    from cc_train.baselines.run import baseline as run

    run(Options(**options))
