"""Evaluations as rows of a comparison: the scores of a run, of a folder, or of a file."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.synth.parsing import UNCHANGED
from cc_train.evaluation import evaluation, evaluation_files, signature
from cc_train.evaluation.captions import metrics
from cc_train.evaluation.evaluation_files import TOTAL, Judged, ScoresFile
from cc_train.evaluation.rendered import fact_scores
from cc_train.evaluation.signature import Signature
from cc_train.runs import run_folder

REMEDY = "Evaluate again, or give other runs or folders of cc-train evaluate"
CIDER = "CIDEr"
FAITHFUL = "faithful"
OF_MASKS = ("mIoU", "mIoU-change", "F1")
JUDGE = "judge"  # what a judge says above all: its headline
MEASURES = (*fact_scores.MEASURES, *metrics.SHOWN, JUDGE, *OF_MASKS, FAITHFUL)
MARKS = {
    "LLM": "a large language model writes the captions",
    "LLM?": "not known whether one does",
    "single": "single-change protocol",
    "multi": "multi-change protocol",
    "unknown": "protocol not known",
    "chosen on test": "the public code chooses the checkpoint on the test split",
    "reproduced": "others reached the scores",
    "not reached": "others tried and did not reach the scores",
    "by others": "measured by others than the authors",
    "CIDEr-D": "the paper calls its CIDEr so; its document frequencies are not known",
    "CIDEr?": "by a scorer that is not known",
    "uncertain": "the scores are in doubt",
    "disputed": "papers print different scores",
}


@dataclass(frozen=True)
class Row:
    """A system's scores by group and measure, × 100.

    Attributes:
        pairs: By group.
        items: CIDEr of each pair by its official id, where it is known.
        exact: For each changed pair whose facts are known, 100 if the caption is exactly right,
            else 0.
        folder: Parts of the absolute path of an evaluated run; only its end is ever shown.
        sources, marks, details: For published scores, by group: where they are printed, what the
            table shows besides them (see MARKS), and all that is known of them as JSON.
        judge: What `judge` is, by which judge, and how often that one errs, in words; empty where
            none was asked.
        masks: Which masks were scored, in words; empty where there are none.
        signature: None for published scores.
        members: The runs of one system whose mean this row is.
        spread: Their standard deviation by group and measure.
    """

    name: str
    groups: dict[str, dict[str, float]]
    pairs: dict[str, int] = field(default_factory=dict)
    items: dict[str, float] = field(default_factory=dict)
    conventions: str = ""
    folder: tuple[str, ...] = ()
    exact: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    marks: dict[str, tuple[str, ...]] = field(default_factory=dict)
    details: dict[str, dict[str, Any]] = field(default_factory=dict)
    signature: Signature | None = None
    members: tuple[Row, ...] = ()
    spread: dict[str, dict[str, float]] = field(default_factory=dict)
    masks: str = ""
    judge: str = ""

    @property
    def runs(self) -> tuple[Row, ...]:
        """The runs of the row."""
        return self.members or (self,)

    def remarks(self, group: str) -> str:
        """Why a published row may mislead, in words."""
        details = self.details.get(group, {})
        return " ".join(str(details[key]) for key in ("uncertain", "note") if key in details)


def read(path: str) -> Row:
    """The row of a run, of an evaluation's folder, or of a scores.json.

    Raises:
        UserError: If no scores are there, or they are damaged.
    """
    start = Path(path)
    evaluated = Path(run_folder.default_evaluation(path))
    candidates = [start] if start.is_file() else [evaluated / "scores.json"]
    candidates += [start / "scores.json"]
    file = next((c for c in candidates if c.is_file()), None)
    if file is None:
        raise UserError(f"{path}: no scores.json in it", "Evaluate it first: cc-train evaluate")
    scores = _scores(file)
    groups = {
        name: {m: values.figures[m] for m in metrics.SHOWN if m in values.figures}
        for name, values in scores.groups.items()
    }
    shares_by_group = fact_scores.by_group(scores.facts) if scores.facts else {}
    for group, shares in shares_by_group.items():
        if group in groups:
            groups[group] = {**shares, **groups[group]}
    groups[TOTAL] |= _of_masks(scores)
    for group, value in (_headline(scores.judged) if scores.judged else {}).items():
        if group in groups:
            groups[group][JUDGE] = value
    folder = file.parent if file.parent.name != run_folder.EVALUATION else file.parent.parent
    folder = Path(os.path.abspath(folder))
    name = folder.name.removesuffix(".evaluation")
    items, exact = _items(file.parent / evaluation.ITEMS)
    return Row(
        name,
        groups=groups,
        pairs={group: values.pairs for group, values in scores.groups.items()},
        items=items,
        conventions=scores.conventions,
        folder=folder.parts,
        exact=exact,
        signature=signature.parse(scores.signature),
        masks=_masks(scores),
        judge=_judge(scores.judged) if scores.judged else "",
    )


def _scores(file: Path) -> ScoresFile:
    try:
        return evaluation_files.checked(ScoresFile, storage.read_json(str(file)))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: no scores of cc-train evaluate ({error})", REMEDY) from None


def _of_masks(scores: ScoresFile) -> dict[str, float]:
    """The measures of predicted masks, as far as an evaluation has them."""
    measures: dict[str, float] = {}
    if scores.masks is not None:
        figures = (scores.masks.miou, scores.masks.miou_change, scores.masks.f1)
        known = zip(OF_MASKS, figures, strict=True)
        measures = {name: value for name, value in known if value is not None}
    if scores.faithfulness is not None and scores.faithfulness.predicted_masks.pairs:
        measures[FAITHFUL] = 100 * scores.faithfulness.predicted_masks.share
    return measures


def _headline(judged: Judged) -> dict[str, float]:
    """A judge's headline by group; of changed pairs alone, it is no figure of an unchanged one."""
    name = judged.headline
    return {group: of[name].value for group, of in judged.groups.items() if name in of}


def _judge(judged: Judged) -> str:
    """What an evaluation's judge says and how often it errs, in words."""
    from cc_train.evaluation.judging.scores import errors_of

    what = f"{judged.headline} by {judged.model} ({judged.protocol})"
    return " ".join((f"{what}.", *errors_of(judged)))


def _masks(scores: ScoresFile) -> str:
    """How many masks an evaluation has, and of which classes."""
    masks = scores.masks
    return f"{masks.pairs:,} of {', '.join(masks.classes)}" if masks else ""


def _items(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """CIDEr of each pair, and of each changed pair with facts whether it is exact, 100 or 0.

    Raises:
        UserError: For a damaged file.
    """
    rows = {row.name: row for row in evaluation_files.items(path)}
    exact = {
        id: 100.0 * bool(row.exact)
        for id, row in rows.items()
        if row.facts and row.facts.type != UNCHANGED
    }
    without = next((id for id, row in rows.items() if CIDER not in row.scores), None)
    if without is not None:
        raise UserError(f"{path}: damaged ({without} has no {CIDER})", evaluation_files.REMEDY)
    return {id: row.scores[CIDER] for id, row in rows.items()}, exact


def distinct(rows: Sequence[Row]) -> list[Row]:
    """The rows with distinct names: rows of one name get as much of their path as tells them apart.

    Rows with the same path, because a run was given twice, are numbered.
    """
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    counts: Counter[str] = Counter()
    renamed = []
    for row in rows:
        name = _told_apart(row, by_name[row.name])
        counts[name] += 1
        renamed.append(replace(row, name=f"{name} ({counts[name]})" if counts[name] > 1 else name))
    return renamed


def _told_apart(row: Row, same_name: Sequence[Row]) -> str:
    """The row's name with as many folders before it as tell it from the others."""
    parents = row.folder[:-1]
    others = {other.folder[:-1] for other in same_name} - {parents}
    if not others:
        return row.name
    depth = next(n for n in itertools.count(1) if parents[-n:] not in {o[-n:] for o in others})
    return "/".join((*parents[-depth:], row.name))
