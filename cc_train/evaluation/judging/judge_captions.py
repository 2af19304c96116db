"""Judges the captions of an evaluation: `cc-train evaluate --judge`.

OUT/judge_answers/     every answer word for word, as `cc-train baseline` stores its answers
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cc_prep import settings
from cc_prep.errors import UserError
from cc_prep.records import Facts
from cc_train.baselines.answers import Answers
from cc_train.evaluation import shard_items
from cc_train.evaluation.captions.coco import STILL, Item
from cc_train.evaluation.evaluation import Evaluation, ranked
from cc_train.evaluation.evaluation_files import TOTAL, Record
from cc_train.evaluation.judging import asking, check, protocols, scores, server, truths
from cc_train.evaluation.judging.forms import Subject
from cc_train.evaluation.judging.protocols import Protocol
from cc_train.evaluation.judging.server import Judge

ANSWERS = "judge_answers"
KEY_VARIABLE = "OPENAI_API_KEY"


@dataclass(frozen=True)
class Options:
    """The options `--judge…`, as the commands' help describes them."""

    model: str
    url: str
    protocol: str = protocols.OURS
    prompt: str | None = None
    overrides: Sequence[str] = ()
    key_variable: str | None = None
    threads: int = 1
    seed: int = 0
    differences: str | None = None
    check: str | None = None


@dataclass(frozen=True)
class Bench:
    """A judge that is ready, and how it is asked.

    Attributes:
        differences: Lists of what differs by the ids of their file.
        check: Folder that `cc-train judge-check` wrote.
    """

    judge: Judge
    protocol: Protocol
    threads: int = 1
    differences: Mapping[str, tuple[Any, ...]] | None = None
    check: str | None = None


def prepared(options: Options) -> Bench:
    """The judge of the options, before anything is asked or captioned. Raises UserError."""
    generation: dict[str, Any] = dict(server.GENERATION)
    try:
        settings.override(generation, options.overrides)
    except UserError as error:
        raise server.of_judge(error) from None
    sent = {name: value for name, value in generation.items() if value is not None}
    endpoint = server.endpoint(options.url, options.key_variable or KEY_VARIABLE)
    judge = Judge(endpoint, options.model, sent)
    protocol = protocols.of(options.protocol, options.prompt, options.seed)
    lists = protocols.listed_differences(options.differences) if options.differences else None
    if options.check is not None:
        check.read(options.check)
    return Bench(judge, protocol, options.threads, lists, options.check)


def judged(
    bench: Bench,
    scored: Evaluation,
    items: Sequence[Item],
    predictions: Mapping[str, str],
    swapped: Mapping[str, str] | None,
    folder: Path,
    console: Console,
) -> Evaluation:
    """An evaluation with judged scores and the judge in its signature.

    Args:
        predictions, swapped: Captions by the items' ids.
        folder: Answers are stored below it.

    Raises:
        UserError and JobFailed: The lists do not fit, the server refuses or fails, or no answer can
            be read.
    """
    subjects = _subjects(items, predictions, swapped, bench.differences)
    protocol = bench.protocol
    names = sorted({form.name for one in subjects for form in protocol.forms(one)})
    record = Record(**bench.judge.identity, **protocol.identity(names))
    measured = None
    if bench.check is not None:
        measured = check.measured(bench.check, record, names)
    if any(one.differences is not None for one in subjects):
        digest = protocols.digest(subjects)[:12]
        record = record.model_copy(update={"differences": digest})
    asked = asking.ask(
        bench.judge,
        Answers(folder / ANSWERS),
        protocol,
        subjects,
        console,
        threads=bench.threads,
    )
    groups: dict[str, set[str]] = {TOTAL: {item.name for item in items}}
    for item in items:
        for name in item.groups:
            groups.setdefault(name, set()).add(item.name)
    shown = {name: groups[name] for name in ranked(groups) if name in scored.groups}
    result = scores.count(protocol, record, asked, shown, measured)
    return replace(scored, judged=result, signature=scored.signature.judged(result.signature))


def _subjects(
    items: Sequence[Item],
    predictions: Mapping[str, str],
    swapped: Mapping[str, str] | None,
    lists: Mapping[str, tuple[Any, ...]] | None,
) -> list[Subject]:
    """What is to be judged of each pair. Raises UserError where lists and pairs do not fit."""
    subjects = []
    for item in items:
        differences = _differences(item, lists)
        unchanged = STILL in item.groups or differences == ()
        if STILL in item.groups and differences:
            raise UserError(
                f"{item.name}: --differences names some, but nothing changed by the references",
                "Correct one of the files",
            )
        subjects.append(
            Subject(
                item.name,  # the same by a run's keys and by a file of references
                predictions[item.id],
                item.references,
                differences,
                unchanged,
                None if swapped is None else swapped[item.id],
            )
        )
    return subjects


def _differences(item: Item, lists: Mapping[str, tuple[Any, ...]] | None) -> tuple[Any, ...] | None:
    if lists is not None:
        for name in (item.name, item.id, *item.aliases):
            if name in lists:
                return lists[name]
        raise UserError(
            f"--differences has no list of {item.name}",
            f"Ids there look like {next(iter(lists))!r}; an unchanged pair has an empty list",
        )
    return None if item.facts is None else truths.differences(item.facts)


def pairs_with_facts(shards: Sequence[str], count: int, seed: int) -> dict[str, Facts]:
    """The facts of pairs by name: of shards, or else of scenes that are drawn. Raises UserError.

    Pairs with several changes are left out, since captions of known truth are of one.
    """
    if not shards:
        return {f"scene{n:06d}": facts for n, facts in enumerate(truths.drawn(count, seed))}
    _, items = shard_items.captioned(shards)
    known = {
        item.name: item.facts for item in items if item.facts is not None and not item.facts.several
    }
    if not known:
        raise UserError(
            "no sample of these shards says which one thing truly changed",
            "Give shards of rendered or composed pairs of one change, or none",
        )
    return dict(itertools.islice(known.items(), count))
