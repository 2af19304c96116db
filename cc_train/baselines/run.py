"""`cc-train baseline`: the captions of a model that nobody trained on the data, and their scores.

OUT/baseline.json      model, wordings, how words are chosen; how many answers were cut or empty
OUT/answers/           every answer word for word (`answers.py`), unless --cache names a folder
and the files of `cc-train evaluate` (`cc_train/evaluation/evaluation.py`).
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.progress import track

from cc_prep import __version__, settings, storage
from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.formats.provenance import differences
from cc_prep.storage import outputs
from cc_prep.terminal import echo
from cc_prep.unspaced import Words
from cc_train.baselines import local, prompts, server
from cc_train.baselines.answers import LENGTH, Answer, Answers
from cc_train.baselines.asking import Answered, Asking
from cc_train.baselines.http_client import Endpoint
from cc_train.baselines.pace import Pace
from cc_train.evaluation import evaluation, protocols, shard_items, signature
from cc_train.training.settings import pick_device

FILE, ANSWERS = "baseline.json", "answers"
KEY_VARIABLE = "OPENAI_API_KEY"
TRIES, TIMEOUT = server.Patience.tries, server.Patience.timeout
MAX_LINE_LENGTH = 100  # of a difference of settings in a message, in characters


@dataclass(frozen=True)
class Options:
    """The command's options, as its help describes them; None means the default."""

    shards: tuple[str, ...]
    out: str
    model: str
    url: str | None = None
    key_variable: str | None = None
    prompt: str | None = None
    overrides: tuple[str, ...] = ()
    requests_per_minute: float | None = None
    threads: int | None = None
    tries: int | None = None
    timeout: float | None = None
    batch_size: int | None = None
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    cache: str | None = None
    limit: int | None = None
    protocol: str | None = None
    words: Words | None = None
    as_json: bool = False


def baseline(options: Options) -> None:
    """Captions the samples of shards, scores the captions and prints the scores.

    Raises UserError and JobFailed.
    """
    _check(options)
    outputs.check_folder(options.out)
    entries, items = shard_items.captioned(options.shards)
    # Also of data sets that a trial does not come to: the full run has the same.
    bare = {e.dataset for e, item in zip(entries, items, strict=True) if item.facts is None}
    wordings = {
        dataset: prompts.of(dataset, options.prompt, rendered=dataset not in bare)
        for dataset in sorted({entry.dataset for entry in entries}, key=str)
    }
    subset = signature.ALL
    if options.limit is not None and options.limit < len(items):
        entries, items = entries[: options.limit], items[: options.limit]
        subset = signature.PREDICTED
    if options.protocol is not None:
        protocols.checked(options.protocol, items)  # before anything is asked
    console, out = on_stderr(), Path(options.out)
    model = _local(options) if options.url is None else _server(options)
    record = _record(model, wordings)
    _require_same(out, record)
    asking = Asking(model, Answers(Path(options.cache or out / ANSWERS)), wordings)
    answered = asking.all(entries, options.threads or 1)
    tracked = track(answered, "asking", len(entries), console=console, transient=True)
    answers = _answers(tracked, out / FILE, record, console)
    captions = {key: answer.caption for key, answer in answers.items()}
    evaluation.write_captions(out, items, captions)  # there whatever the scores then fail at
    _finish(out, record, list(answers.values()), console)
    scores = evaluation.evaluate(
        items, captions, protocol=options.protocol, subset=subset, words=options.words or "treebank"
    )
    evaluation.write(out, scores, items, captions)
    figures = scores.to_json()
    echo(json.dumps(figures, indent=2) if options.as_json else evaluation.table(scores))
    echo(f"files: {out}", err=True)


def _answers(
    answered: Iterable[Answered], path: Path, record: dict[str, Any], console: Console
) -> dict[str, Answer]:
    """The answers by the samples' keys; says how many of them were stored.

    With the first answer `record` is written to `path`: a mistake in the command leaves nothing.
    """
    answers: dict[str, Answer] = {}
    stored = 0
    for one in answered:
        if not answers:
            storage.write_json(str(path), {**record, "version": __version__})
        answers[one.key] = one.answer
        stored += one.stored
    if stored:
        console.print(f"{stored} of {len(answers)} answers were stored")
    return answers


def _record(
    model: local.Local | server.Server, wordings: Mapping[str | None, prompts.Wording]
) -> dict[str, Any]:
    """What baseline.json holds of a baseline."""
    url = {"url": str(model.endpoint)} if isinstance(model, server.Server) else {}
    texts = {dataset or "default": wording.to_json() for dataset, wording in wordings.items()}
    return {"model": model.name, **url, **model.identity, "wordings": texts}


def _check(options: Options) -> None:
    """Raises UserError for options that do not go together."""
    if options.protocol is not None:
        protocols.get(options.protocol)
    if options.url is not None:
        wrong = {
            "--batch-size": options.batch_size is not None,
            "--precision": options.precision != "auto",
            "--device": options.device != "auto",
        }
        where, remedy = "of a local model, not of --url", "Leave it out"
    else:
        wrong = {
            "--requests-per-minute": options.requests_per_minute is not None,
            "--threads": options.threads is not None,
            "--tries": options.tries is not None,
            "--timeout": options.timeout is not None,
            "--key-variable": options.key_variable is not None,
        }
        where, remedy = "of --url, not of a local model", "Leave it out, or name a server: --url"
    for name, is_given in wrong.items():
        if is_given:
            raise UserError(f"{name} is {where}", remedy)


def _server(options: Options) -> server.Server:
    generation: dict[str, Any] = dict(server.GENERATION)
    settings.override(generation, options.overrides)
    sent = {name: value for name, value in generation.items() if value is not None}
    return server.Server(
        Endpoint.of(options.url or "", options.key_variable or KEY_VARIABLE),
        options.model,
        sent,
        Pace(options.requests_per_minute),
        server.Patience(options.tries or TRIES, options.timeout or TIMEOUT),
    )


def _local(options: Options) -> local.Local:
    folder = local.require_folder(options.model)
    values: dict[str, Any] = {}
    settings.override(values, options.overrides)
    generation = settings.build(local.Generation, values, "--set", "docs/baseline.md")
    device = pick_device(options.device)
    return local.Local(folder, generation, device, options.precision, options.batch_size or 1)


def _require_same(out: Path, record: dict[str, Any]) -> None:
    """Raises UserError where `out` holds the answers of another baseline.

    The server's address may change: a model may have moved.
    """
    path = out / FILE
    try:
        before = storage.read_json(str(path))
    except FileNotFoundError:
        return
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})", "Give another --out") from None
    free = ("url:", "version:", "answers:", "answers.")
    changed = [d for d in differences(before, record) if not d.startswith(free)]
    if changed:
        lines = [textwrap.shorten(line, MAX_LINE_LENGTH, placeholder="…") for line in changed[:5]]
        raise UserError(
            f"{out} holds the captions of another baseline ({'; '.join(lines)})",
            "Give another --out",
        )


def _finish(out: Path, record: dict[str, Any], answers: Sequence[Answer], console: Console) -> None:
    """Writes and says how many answers are none that their model would have given in full."""
    cut = sum(answer.ended == LENGTH for answer in answers)
    empty = sum(not answer.caption for answer in answers)
    counts = {"pairs": len(answers), "cut": cut, "empty": empty}
    storage.write_json(str(out / FILE), {**record, "version": __version__, "answers": counts})
    if cut:
        note = f"{cut} answers were cut at the limit of tokens: see --set in docs/baseline.md"
        console.print(note)
    if empty:
        console.print(f"{empty} answers are empty, and score 0")
