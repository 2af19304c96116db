"""The command that asks a multi-modal LLM what changed."""

from __future__ import annotations

from typing import Any

import click

from cc_train.options import (
    device_option,
    json_scores_option,
    protocol_option,
    shards_option,
    words_option,
)


@click.command()
@shards_option("Training shards of the split", required=True)
@click.option(
    "--model",
    required=True,
    metavar="FOLDER|NAME",
    help="A local folder; with --url, the name of a model of the server.",
)
@click.option("--url", metavar="URL", help="An OpenAI-compatible server: http://localhost:8000/v1.")
@click.option("--out", required=True, metavar="DIR", help="The folder that is written.")
@click.option(
    "--prompt",
    metavar="TEXT",
    help="The question; default: that of the data set in cc_train/baselines/prompts.yaml.",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A decoding parameter, such as max_tokens=50; null omits it from the request "
    "(repeatable).",
)
@click.option(
    "--key-variable",
    metavar="NAME",
    help="With --url: the environment variable that holds the key [default: OPENAI_API_KEY].",
)
@click.option(
    "--requests-per-minute",
    type=click.FloatRange(0, min_open=True),
    help="With --url: maximum number of requests per minute.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 64),
    help="With --url: number of requests at a time [default: 1].",
)
@click.option(
    "--tries",
    type=click.IntRange(1),
    help="With --url: attempts per request before the run ends [default: 8].",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="With --url: seconds without a byte before a request counts as failed [default: 120].",
)
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="For a local model: pairs per batch [default: 1].",
)
@device_option
@click.option(
    "--precision",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="For a local model; auto: bfloat16 on a GPU, float32 on a CPU.",
)
@click.option(
    "--cache",
    metavar="DIR",
    help="Folder of stored answers, another one for each server; default: OUT/answers.",
)
@click.option(
    "--limit", type=click.IntRange(1), help="Ask about at most this many samples, for a trial."
)
@protocol_option
@words_option
@json_scores_option
def baseline(**options: Any) -> None:
    """Asks a multi-modal LLM what changed, without any training, and scores its answers.

    The model is a local folder (transformers, extra [mllm]), or a model of an OpenAI-compatible
    server; it gets both images of every pair. The question depends on the data set. OUT gets the
    files of `cc-train evaluate`, so `cc-train compare` shows them beside trained captioners.

    Answers are stored as they arrive. The same command resumes a run that was killed, and does not
    ask again what was answered.

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
