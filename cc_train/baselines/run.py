"""`cc-train baseline`: the captions of a model that nobody trained on the data, and their scores.

OUT/baseline.json      model, wordings, how words are chosen; how many answers were cut or empty
OUT/answers/           every answer word for word (`answers.py`), unless --cache names a folder
and the files of `cc-train evaluate` (`cc_train/evaluation/evaluation.py`).
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from cc_prep import __version__, settings, storage
from cc_prep.console import on_stderr
from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.provenance import differences
from cc_prep.storage import outputs
from cc_prep.terminal import echo
from cc_prep.unspaced import Words
from cc_train.baselines import local, prompts, questions, server
from cc_train.baselines.answers import FILTERED, LENGTH, Answer, Answers
from cc_train.baselines.asking import Answered, Asking
from cc_train.baselines.http_client import Endpoint
from cc_train.baselines.pace import Pace
from cc_train.baselines.questions import Example
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.evaluation import evaluation, protocols, shard_items, signature
from cc_train.training.settings import pick_device
from cc_train.transformers_models import Precision

FILE, ANSWERS = "baseline.json", "answers"
TRIES, TIMEOUT = server.Patience.tries, server.Patience.timeout
SHOTS = 4  # examples
FIRST = 5  # answers; if all of them are empty, no further question is put
MAX_LINE_LENGTH = 100  # of a difference of settings in a message, in characters


def baseline(
    *,
    shards: Sequence[str],
    out: str,
    model: str,
    url: str | None = None,
    key_variable: str | None = None,
    prompt: str | None = None,
    examples: Sequence[str] = (),
    shots: int | None = None,
    swapped: bool = False,
    plain: bool = False,
    overrides: Sequence[str] = (),
    requests_per_minute: float | None = None,
    threads: int | None = None,
    tries: int | None = None,
    timeout: float | None = None,
    no_probe: bool = False,
    batch_size: int | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    cache: str | None = None,
    limit: int | None = None,
    protocol: str | None = None,
    words: Words | None = None,
    as_json: bool = False,
) -> None:
    """Captions the samples of shards, scores the captions and prints the scores.

    Its parameters are the options of `cc-train baseline`, as the command's help describes them.

    Raises:
        UserError: An option or a file is wrong, or the server refuses.
        JobFailed: The server fails, or the model says nothing.
    """
    if protocol is not None:
        protocols.get(protocol)
    _check_apart(
        url,
        of_server={
            "--requests-per-minute": requests_per_minute is not None,
            "--threads": threads is not None,
            "--tries": tries is not None,
            "--timeout": timeout is not None,
            "--key-variable": key_variable is not None,
            "--no-probe": no_probe,
        },
        of_local={
            "--batch-size": batch_size is not None,
            "--precision": precision != "auto",
            "--device": device != "auto",
        },
    )
    if shots is not None and not examples:
        raise UserError("--shots without --examples", "Give --examples: shards of the training")
    outputs.check_folder(out)
    entries, items = shard_items.captioned(shards)
    # Also of data sets that a trial does not come to: the full run has the same.
    bare = {
        entry.dataset
        for entry, item in zip(entries, items, strict=True)
        if item.facts is None or item.facts.grammar != "synth"
    }
    wordings = {
        dataset: prompts.of(dataset, prompt, rendered=dataset not in bare)
        for dataset in sorted({entry.dataset for entry in entries}, key=str)
    }
    shown = _shown(examples, shots or SHOTS, entries)
    subset = signature.ALL
    if limit is not None and limit < len(items):
        entries, items = entries[:limit], items[:limit]
        subset = signature.PREDICTED
    if protocol is not None:
        protocols.checked(protocol, items)  # before anything is asked
    console, folder = on_stderr(), Path(out)
    asked: local.Local | server.Server
    if url is None:
        generation = _generation(overrides)
        asked = local.Local(
            local.require_folder(model), generation, pick_device(device), precision, batch_size or 1
        )
    else:
        asked = server.Server(
            Endpoint.of(url, key_variable or server.KEY_VARIABLE),
            model,
            server.generation(overrides),
            Pace(requests_per_minute),
            server.Patience(tries or TRIES, timeout or TIMEOUT),
            None if no_probe else console.print,
        )
    record = _record(asked, wordings, shown)
    _require_same(folder, record)
    asking = Asking(asked, Answers(Path(cache or folder / ANSWERS)), wordings, shown)
    with closing(asking.all(entries, threads or 1)) as answered:
        tracked = track(answered, "asking", len(entries), console=console, transient=True)
        answers = _answers(tracked, folder / FILE, record, console)
    if isinstance(asked, server.Server):
        record["url"] = str(asked.endpoint)  # it may have been asked by another door
    captions = _captions(answers, plain)
    evaluation.write_captions(folder, items, captions)  # there whatever the scores then fail at
    _finish(folder, {**record, "plain": plain}, list(answers.values()), console)
    reversed_captions = None
    if swapped:
        changed = [entry for entry, item in zip(entries, items, strict=True) if item.is_changed]
        with closing(asking.all(changed, threads or 1, swapped=True)) as answered:
            tracked = track(answered, "asking, swapped", len(changed), console=console)
            reversed_captions = _captions({one.key: one.answer for one in tracked}, plain)
    words = words or "treebank"
    scores = evaluation.evaluate(items, captions, protocol=protocol, subset=subset, words=words)
    if reversed_captions is not None:
        check = evaluation.swap_check(items, captions, reversed_captions, words)
        scores = replace(scores, swapped=check)
    evaluation.write(folder, scores, items, captions)
    figures = scores.to_json()
    echo(json.dumps(figures, indent=2) if as_json else evaluation.table(scores))
    echo(f"files: {folder}", err=True)


def _answers(
    answered: Iterable[Answered], path: Path, record: dict[str, Any], console: Console
) -> dict[str, Answer]:
    """The answers by the samples' keys; says how many of them were stored.

    With the first answer that has words `record` is written to `path`: a mistake in the command
    leaves nothing that the next one has to fit.

    Raises:
        JobFailed: The first answers, or all of them, are empty.
    """
    answers: dict[str, Answer] = {}
    stored = spoken = 0
    has_words = False
    for one in answered:
        if one.answer.caption and not has_words:
            has_words = True
            storage.write_json(str(path), {**record, "version": __version__})
        answers[one.key] = one.answer
        stored += one.stored
        spoken += one.answer.ended != FILTERED
        if not has_words and spoken == FIRST:
            break
    if not has_words:
        raise JobFailed(_nothing_said(list(answers.values()), path.parent))
    if stored:
        console.print(f"{stored} of {len(answers)} answers were stored")
    return answers


def _nothing_said(answers: Sequence[Answer], out: Path) -> str:
    """Why all answers are empty, and what helps."""
    ends = {answer.ended for answer in answers}
    if ends == {FILTERED}:
        why = "the server refuses the questions for their contents"
    elif LENGTH in ends:
        why = (
            "the limit of tokens cut the model off before its answer, perhaps in its thoughts. Add "
            f"--set max_tokens={server.MANY_TOKENS} (of a local model: max_new_tokens), or have it "
            "answer without thoughts, see docs/baseline.md"
        )
    else:
        why = f"see what the model said in {out / ANSWERS}, and --set in docs/baseline.md"
    return f"the first {len(answers)} answers are empty: {why}"


def _shown(
    shards: Sequence[str], count: int, entries: Sequence[Entry]
) -> dict[str | None, list[Example]]:
    """By data set of `entries` the examples that its questions begin with. Raises UserError."""
    if not shards:
        return {}
    known = shard_index.read(shards)
    asked = {entry.key for entry in entries}
    datasets = sorted({entry.dataset for entry in entries}, key=str)
    return {dataset: questions.examples(known, count, dataset, asked) for dataset in datasets}


def _captions(answers: Mapping[str, Answer], plain: bool) -> dict[str, str]:
    return {
        key: answer.plain_caption if plain else answer.caption for key, answer in answers.items()
    }


def _record(
    model: local.Local | server.Server,
    wordings: Mapping[str | None, prompts.Wording],
    shown: Mapping[str | None, Sequence[Example]],
) -> dict[str, Any]:
    """What baseline.json holds of a baseline."""
    url = {"url": str(model.endpoint)} if isinstance(model, server.Server) else {}
    texts = {dataset or "default": wording.to_json() for dataset, wording in wordings.items()}
    keys = {dataset or "default": [one.key for one in shown[dataset]] for dataset in shown}
    examples = {"examples": keys} if keys else {}
    return {"model": model.name, **url, **model.identity, "wordings": texts, **examples}


def _check_apart(
    url: str | None, of_server: Mapping[str, bool], of_local: Mapping[str, bool]
) -> None:
    """Raises UserError for an option of a local model with --url, and the other way round.

    Args:
        of_server, of_local: By option, whether it is given.
    """
    wrong, where, remedy = of_local, "of a local model, not of --url", "Leave it out"
    if url is None:
        wrong, where = of_server, "of --url, not of a local model"
        remedy = "Leave it out, or name a server: --url"
    for name, is_given in wrong.items():
        if is_given:
            raise UserError(f"{name} is {where}", remedy)


def _generation(overrides: Sequence[str]) -> local.Generation:
    """The decoding parameters of a local model. Raises UserError."""
    values: dict[str, Any] = {}
    settings.override(values, overrides)
    return settings.build(local.Generation, values, "--set", "docs/baseline.md", overrides)


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
    changed = differences(before, record, free=("url", "version", "answers", "plain"))
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
    in_thoughts = sum(answer.is_in_thoughts for answer in answers)
    decorated = sum(answer.caption != answer.plain_caption for answer in answers)
    counts = {
        "pairs": len(answers), "cut": cut, "empty": empty, "in_thoughts": in_thoughts,
        "decorated": decorated,
    }  # fmt: skip
    storage.write_json(str(out / FILE), {**record, "version": __version__, "answers": counts})
    if cut:
        note = f"{cut} answers were cut at the limit of tokens: see --set in docs/baseline.md"
        console.print(note)
    if in_thoughts:
        what = "answers were found among the model's thoughts, where the server put them"
        console.print(f"{in_thoughts} {what}")
    if decorated and not record["plain"]:
        what = "answers have more around the sentence, such as “Answer:” or **, which lowers scores"
        console.print(f"{decorated} {what}: --plain removes it, and asks nothing again")
    if empty:
        console.print(f"{empty} answers are empty, and score 0")
