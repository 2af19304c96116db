"""Scores a run, predictions or masks, prints the scores and writes them into a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cc_prep import storage
from cc_prep.console import on_stderr
from cc_prep.errors import UserError
from cc_prep.storage import outputs
from cc_prep.terminal import echo
from cc_prep.unspaced import Words
from cc_prep.words import counted
from cc_train import loading
from cc_train.evaluation import evaluation, score_captioner, shard_items, signature
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import Item
from cc_train.evaluation.evaluation import Evaluation
from cc_train.evaluation.masks import files as mask_files
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.rendered import fact_scores
from cc_train.runs import run_folder, stored_run
from cc_train.sharing import hub
from cc_train.training.settings import pick_device

FEW = 3  # pairs that a note names


@dataclass(frozen=True)
class Output:
    """How scores are reported.

    folder: the folder that they are written into; None for the default of what is scored.
    as_json: print them as JSON instead of a table.
    """

    folder: str | None
    as_json: bool


@dataclass(frozen=True)
class References:
    """What predictions are scored against.

    file: references; None where they are those of `shards`. types: a file of types of change.
    facts: a file of what truly changed.
    """

    file: str | None
    shards: tuple[str, ...]
    types: str | None
    facts: str | None

    def read(self) -> tuple[list[Item], list[Item]]:
        """The pairs that have captions, and those that have none. Raises UserError."""
        if self.file is not None:
            items, uncaptioned = coco.read_references(self.file), coco.read_uncaptioned(self.file)
            _say_blank(coco.blank_references(self.file))
        else:
            _, items, uncaptioned = shard_items.with_uncaptioned(self.shards)
        items = _with_types(items, self.types) if self.types else items
        items = fact_scores.with_facts(items, self.facts) if self.facts else items
        return items, uncaptioned


def score_run(
    run: str,
    shards: tuple[str, ...],
    output: Output,
    *,
    facts: str | None,
    protocol: str | None,
    words: Words | None,
    beams: int,
    device: str,
) -> None:
    """Captions the samples of shards and scores the captions; writes RUN/evaluation by default.

    facts, protocol: see `References` and `evaluation.evaluate`. words: how captions are split; None
    for the way of the run's training. beams: 1 is greedy. Raises UserError.
    """
    path = Path(output.folder or run_folder.default_evaluation(run))
    outputs.check_folder(str(path))
    entries, items = shard_items.captioned(shards)
    items = fact_scores.with_facts(items, facts) if facts else items
    stored = stored_run.read(hub.locate(run))
    captioner = loading.of_run(stored, run, pick_device(device))
    scores, captions = score_captioner.score(
        captioner,
        entries,
        items,
        beams,
        on_stderr(),
        path=path,
        protocol=protocol,
        words=words or stored.words,
    )
    scores = replace(
        scores,
        step=stored.step,
        weights=stored.sha256,
        trained_on=run_folder.trained_on(stored.folder, [entry.key for entry in entries]),
    )
    evaluation.write(path, scores, items, captions)
    _print(scores, path, output.as_json)


def score_predictions(
    files: tuple[str, ...],
    references: References,
    output: Output,
    *,
    predicted_only: bool,
    protocol: str | None,
    words: Words | None,
) -> None:
    """Scores the predictions in files; writes NAME.evaluation, of the first one, by default.

    predicted_only: leave out pairs without a prediction. protocol, words: see
    `evaluation.evaluate`. Raises UserError.
    """
    path = Path(output.folder or f"{files[0].rstrip('/')}.evaluation")
    outputs.check_folder(str(path))
    coco.check_apart(path, [*files, *filter(None, [references.file])])
    predicted = coco.read_predictions(files)
    items, uncaptioned = references.read()
    count = len(items)
    captions, items = coco.matched(predicted, items, predicted_only, uncaptioned)
    _say_left_out(count - len(items), len(predicted) - len(captions))
    subset = signature.PREDICTED if predicted_only and len(items) < count else signature.ALL
    scores = evaluation.evaluate(
        items, captions, protocol=protocol, subset=subset, words=words or "treebank"
    )
    evaluation.write(path, scores, items, captions, uncaptioned)
    _print(scores, path, output.as_json)


def score_masks(predictions: str, references: str, output: Output, *, classes: int | None) -> None:
    """Scores the masks in a folder against those in another; writes nothing by default.

    classes: see `cc_train.evaluation.masks.files.score`. Raises UserError.
    """
    path = None
    if output.folder is not None:
        outputs.check_folder(output.folder)
        path = str(Path(output.folder) / evaluation.SCORES)
        if storage.exists(path) and not _holds_masks_alone(path):
            raise UserError(f"{path}: not the scores of masks", "Give another --out")
    figures = mask_files.score(predictions, references, classes).to_json()
    if path is not None:
        storage.write_json(path, {"masks": figures})
    echo(json.dumps(figures, indent=2) if output.as_json else segmentation.table(figures))


def _print(scores: Evaluation, path: Path, as_json: bool) -> None:
    echo(json.dumps(scores.to_json(), indent=2) if as_json else evaluation.table(scores))
    echo(f"files: {path}", err=True)


def _with_types(items: Sequence[Item], path: str) -> list[Item]:
    """The items in the groups of a type mapping; a note says how many changed pairs it lacks."""
    typed = coco.with_types(items, path)
    without = sum(item.groups == (coco.CHANGE,) for item in typed)
    if without:
        echo(f"{path}: no type of {without} changed pairs", err=True)
    return typed


def _say_left_out(pairs: int, predictions: int) -> None:
    """pairs: how many have no prediction. predictions: how many are of pairs without captions."""
    if pairs:
        echo(f"left out: {counted(pairs, 'pair')} without a prediction", err=True)
    if predictions:
        count = counted(predictions, "prediction")
        echo(f"left out: {count} of pairs without captions", err=True)


def _say_blank(ids: Sequence[str]) -> None:
    """ids: those of blank references."""
    if ids:
        named = ", ".join(list(dict.fromkeys(ids))[:FEW])
        count = counted(len(ids), "blank reference")
        echo(f"{count}, scored as the official scorer does, such as of {named}", err=True)


def _holds_masks_alone(path: str) -> bool:
    """Whether a file of scores may be replaced by those of masks: it has none of captions."""
    try:
        scores = storage.read_json(path)
    except ValueError:
        return False
    return isinstance(scores, dict) and scores.keys() == {"masks"}
