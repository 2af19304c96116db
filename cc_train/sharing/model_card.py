"""The card of an exported network: what it is, on what it was trained, how good it is."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from cc_prep import redaction, storage, weights
from cc_prep.errors import UserError
from cc_train import calibration
from cc_train.data.shard_index import Entry
from cc_train.evaluation import evaluation, evaluation_files
from cc_train.evaluation.captions.coco import scene_of
from cc_train.evaluation.comparing import bootstrap
from cc_train.evaluation.evaluation_files import (
    TOTAL,
    FactScores,
    Interval,
    MaskScores,
    ScoredPair,
    ScoresFile,
)
from cc_train.evaluation.rendered import fact_scores
from cc_train.layers import named_weights
from cc_train.runs import checkpoints, origin, portable_settings
from cc_train.runs.stored_run import Run

NAME = "README.md"
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
OWN_MEANS = ("ROUGE-L", "CIDEr")  # measures of a corpus that are the mean of its pairs'
# Of scores.json, where they are of the weights before an export rounded these: their SHA-256, or
# None where it is not known.
UNROUNDED = "scored_weights"
NOTE = "The captions are those of the weights before these were rounded to float16."
SECTION = re.compile(r"^## How good it is\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
INTERVALS = ", of CIDEr and ROUGE-L by resampling the scenes"
PATH = re.compile(r'(?<=from_pretrained\(")[^"]*(?="\))|(?<=cc-train caption )\S+')


@dataclass(frozen=True)
class Measured:
    """Scores for the card.

    Attributes:
        measures: Texts by name, with intervals where they are known.
    """

    on: str = ""
    measures: dict[str, str] = field(default_factory=dict)
    signature: str = ""


def measured(folder: Path, entries: Sequence[Entry] = ()) -> Measured:
    """What an evaluation's folder says; nothing where there is none. Raises UserError.

    Args:
        entries: The samples that were evaluated, where they are known.
    """
    if not (folder / evaluation.SCORES).exists():
        return Measured()
    try:
        content = storage.read_json(str(folder / evaluation.SCORES))
        scores = evaluation_files.checked(ScoresFile, content)
        items = evaluation_files.items(folder / evaluation.ITEMS)
        total, facts = scores.groups[TOTAL], scores.facts
        measures = {} if facts is None else _right(facts)
        measures |= {name: _value(name, value, items) for name, value in total.figures.items()}
        measures |= {} if scores.masks is None else _of_masks(scores.masks)
        if len(items) != total.pairs:
            raise ValueError(f"{evaluation.ITEMS} has {len(items)} of {total.pairs} pairs")
    except DAMAGE as error:
        raise UserError(f"{folder}: damaged ({error})", evaluation_files.REMEDY) from None
    words, pairs = _datasets(entries), total.pairs
    on = f"On {pairs:,} pairs{f' of {words}' if words else ''}"
    if scores.beams is not None:  # scores of predictions in files do not say it
        greedy = scores.beams == 1
        on += ", greedy captions" if greedy else f", captions of {scores.beams} beams"
        if scores.decode is not None:
            on += f", by {scores.decode}"
    on += "."
    if facts is not None:
        changed = f"{facts.changed_pairs.pairs:,} of"
        known = facts.changed_pairs.pairs + facts.unchanged_pairs.pairs
        with_facts = f" {known:,} of the pairs have known facts. {changed} these"
        on += with_facts if known < pairs else f" {changed} the pairs"
        on += (
            " changed; the shares of right types, looks, new values and exact captions are over "
            "these."
        )
    if is_of_unrounded(scores):
        on += f" {NOTE}"
    if scores.trained_on:
        on += f" {evaluation.of_training(scores.trained_on, pairs)}"
    return Measured(on, measures, scores.signature)


def is_of_unrounded(scores: ScoresFile) -> bool:
    """Whether scores are of the weights before an export rounded these."""
    return UNROUNDED in (scores.model_extra or {})


def of_captioner(
    stored: Run, folder: Path, name: str, scores: Measured, licence: str | None, data: str | None
) -> str:
    """The card of a captioner's folder.

    Args:
        data: In words, what it was trained on.
    """
    height, width = stored.settings.get("size") or (0, 0)
    text = stored.settings.get("text") or {}
    known = f"{text['count']:,} entries" if text.get("count") else "see the files"
    base = stored.settings.get("base")
    return _render(
        "captioner.md.j2",
        name=name,
        system=stored.system,
        origin=_origin(stored),
        licence=licence,
        data=data,
        start=_start(stored),
        pairs=_pairs(stored),
        steps=_steps(stored),
        size=f"{width}×{height}" if height else "see the settings",
        words=known if base is None else None,
        base=None if base is None else _base(stored),
        scores=scores,
        interval_kind=INTERVALS,
        limits=_limits(stored, scores, data),
        files=[_file(folder / file) for file in _contents(stored)],
        by_name=stored.settings.get(named_weights.KEY, {}),
        parameters=_parameters(stored),
        settings_text=_settings(stored),
    )


def of_network(
    stored: Run,
    file: Path,
    name: str,
    about: Mapping[str, Any],
    licence: str | None,
    data: str | None,
) -> str:
    """The card of a network that is one file.

    Args:
        stored: With the tensors that the file holds.
        about: What the system's recipe measured of it.
        data: In words, what it was trained on.
    """
    return _render(
        "network.md.j2",
        name=name,
        file={**_file(file), "name": f"{name}.safetensors"},
        licence=licence,
        data=data,
        start=_start(stored),
        pairs=_pairs(stored),
        steps=_steps(stored),
        parameters=_parameters(stored),
        settings_text=_settings(stored),
        **about,
    )


def with_path(card: str, path: str) -> str:
    """A card whose examples load the captioner from another place, such as its id on the hub."""
    return PATH.sub(lambda _: path, card)


def with_scores(card: str, scores: Measured) -> str:
    """A card with these scores in place of its own; as it is where it has them already."""
    rows = [f"| {name} | {value} |" for name, value in scores.measures.items()]
    known = all(row in card for row in rows) and scores.signature in card
    if known and (NOTE in card) == (NOTE in scores.on):
        return card
    section = _render("scores.md.j2", scores=scores, interval_kind=INTERVALS)
    if SECTION.search(card) is None:  # somebody's own text
        return f"{card.rstrip()}\n\n{section}"
    return SECTION.sub(lambda _: f"{section}\n", card)


def _limits(stored: Run, scores: Measured, data: str | None) -> list[str]:
    """What the captioner cannot do, as far as the run knows."""
    starts = [stored.settings.get(key) for key in (origin.INIT, origin.INIT_PAIR)]
    names = " and ".join(str(start["name"]) for start in starts if start is not None)
    before = f", starting from the weights of {names}" if names else ""
    trained = f"It was trained on {data}{before}. " if data else ""
    limits = [
        f"{trained}For images unlike its training data it also gives a sentence, which is then "
        "wrong.",
        "Both images must show one view in one size; they are resized to the size above.",
    ]
    if "text" in stored.settings:
        limits.insert(1, "It can only use the words of its vocabulary.")
    if "calibration" in stored.settings:
        limits.append(
            "Its confidence is the probability that a greedy caption is right, for pairs like "
            "those that it was calibrated on. A caption with a low confidence should not be used. "
            "Captions of a beam search have none."
        )
        trained_on = stored.settings["calibration"].get("trained_on", 0)
        if trained_on:
            pairs = stored.settings["calibration"]["pairs"]
            limits.append(calibration.of_training(trained_on, pairs))
    else:
        limits.append("It gives no confidence: nothing shows when a caption is wrong.")
    return limits


def _contents(stored: Run) -> list[str]:
    return [checkpoints.MODEL, *stored.settings.get("files", [])]


def _file(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    return {"name": path.name, "bytes": size, "sha256": storage.sha256(path)}


def _render(template: str, **values: Any) -> str:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, trim_blocks=True, lstrip_blocks=True)
    return f"{environment.get_template(template).render(**values).rstrip()}\n"


def _value(name: str, value: float, items: Sequence[ScoredPair]) -> str:
    """A measure of the corpus, with an interval where it is the mean over the pairs."""
    if name not in OWN_MEANS:
        return f"{value:.2f}"
    names = [item.name for item in items]
    scores = [item.scores[name] for item in items]
    if len(set(map(scene_of, names))) < 2:  # scenes are drawn
        return f"{value:.2f}"
    low, high = bootstrap.interval(names, scores, np.random.default_rng(0))
    return f"{value:.2f} ({low:.2f} … {high:.2f})"


def _right(facts: FactScores) -> dict[str, str]:
    """The shares of right captions of rendered pairs, with their intervals."""
    shares: dict[str, Interval] = {}
    if facts.told_apart is not None:
        shares[fact_scores.TOLD_APART] = facts.told_apart
    shares |= {name: share for name, share in facts.shares.items() if share.pairs}
    right = {
        name: f"{100 * one.share:.1f} % ({100 * one.low:.1f} … {100 * one.high:.1f})"
        for name, one in shares.items()
    }
    names = ("precision", "recall", "F1") if facts.changes else ()
    return right | {f"{name} of changes": f"{100 * facts.changes[name]:.1f} %" for name in names}


def _of_masks(masks: MaskScores) -> dict[str, str]:
    """The scores of the masks, where the captioner says where something changed."""
    known = {"mIoU": masks.miou, "mIoU-change": masks.miou_change, "F1": masks.f1}
    return {f"{name} of masks": f"{v:.2f}" for name, v in known.items() if v is not None}


def _datasets(entries: Sequence[Entry]) -> str:
    """Data sets and splits of samples in words: the data set `clevr` (test)."""
    splits = Counter((entry.dataset, entry.split) for entry in entries)
    named = {dataset for dataset, _ in splits if dataset}
    listed = ", ".join(
        f"`{name}` ({', '.join(sorted(split for of, split in splits if of == name and split))})"
        for name in sorted(named)
    )
    return f"the data set{'s' if len(named) > 1 else ''} {listed}" if listed else ""


def _parameters(stored: Run) -> int:
    """How many numbers the stored tensors hold: parameters, and statistics such as the mean and
    deviation of each channel. Whole numbers, such as counters, are left out.
    """
    return sum(t.numel() for t in stored.tensors.values() if t.is_floating_point())


def _settings(stored: Run) -> str:
    """The settings as a card shows them: without the folders of the machine of the training."""
    return json.dumps(portable_settings.shown(stored.settings), indent=1, sort_keys=True)


def _origin(stored: Run) -> str:
    """Who trained it, in a sentence."""
    imported = stored.settings.get(origin.IMPORTED)
    if imported is None:
        return f"It was trained by `cc-train {stored.system}` of the change captioning toolkit."
    return (
        f"Others trained it: its weights are those of their file `{imported['file']}`, SHA-256 "
        f"`{imported['sha256']}`, for `cc-train {stored.system}` of the change captioning toolkit."
    )


def _base(stored: Run) -> str:
    """The language model that the run's weights are worth nothing without."""
    base, path = stored.settings["base"], stored.settings["model"]["weights"]
    name = (
        "not named" if path is None else f"`{redaction.last_part(path)}`"
    )  # the environment named it
    where = "set `CC_TRAIN_MLLM_WEIGHTS` to its folder"
    if path is not None and weights.is_known(path):
        where = "the toolkit knows it by this name (`cc-prep weights` lists it)"
    return (
        f"{name} (family {base['family']}, fingerprint `{base['fingerprint']}`), which is not "
        f"among the files: {where}"
    )


def _start(stored: Run) -> str:
    """What the training started from; other data and another licence may come with it."""
    if origin.IMPORTED in stored.settings:
        return "what others trained, see above"
    if origin.INIT not in stored.settings:
        return "not stated"
    starts = [stored.settings[origin.INIT], stored.settings.get(origin.INIT_PAIR)]
    known = [f"{one['name']}, SHA-256 `{one['sha256']}`" for one in starts if one is not None]
    return "; ".join(known) or "random weights"


def _pairs(stored: Run) -> str:
    samples = stored.settings.get("samples", {})
    if not samples:
        return "a number of pairs that the run does not state"
    total = f" of {samples['count']:,}" if "count" in samples else ""
    return f"{samples['train']:,}{total} pairs"


def _steps(stored: Run) -> str:
    loop = stored.settings.get("loop", {})
    if not loop or origin.IMPORTED in stored.settings:
        return "a number of steps that the run does not state"
    # Of all processes and micro-batches.
    items = loop.get("global_batch_size") or loop["batch_size"]
    if not stored.step:  # exported before: the step is not known any more
        return f"the best of {loop['steps'] or 0:,} steps of {items}"
    text = f"{stored.step:,} steps of {items}"
    if stored.step < (loop["steps"] or 0):
        text += f" (the best of {loop['steps']:,} steps)"
    return text
