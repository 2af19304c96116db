"""How well predicted change masks agree with the true ones.

One confusion matrix is counted over all pixels of a split; no figure is a mean over images. With
TP, FP and FN of a class, IoU = TP / (TP + FP + FN), precision = TP / (TP + FP), recall = TP / (TP +
FN), F1 = 2 TP / (2 TP + FP + FN). The conventions of LEVIR-MCI and of binary change detection:

mIoU          mean of IoU over all classes, the unchanged one included
mIoU-change   the same over the classes of change alone
precision, recall, F1, IoU-any   of "changed at all": all classes of change as one
mF1           mean of F1 over the classes of change
false alarms  share of the unchanged pairs in which some change is predicted

All are × 100. A class that is neither in the references nor in the predictions has no metrics, and
no mean counts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

UNCHANGED = "unchanged"
MIOU, MIOU_CHANGE, FALSE_ALARMS = "mIoU", "mIoU-change", "false alarms"
# Of "changed at all", in the order in which they are printed.
ANY = {"F1": "F1", "precision": "precision", "recall": "recall", "IoU-any": "IoU"}


def confusion(reference: np.ndarray, prediction: np.ndarray, classes: int) -> np.ndarray:
    """Number of pixels by true and predicted class, int64 [K + 1, K + 1].

    Args:
        reference, prediction: Class ids uint8 [H, W], 0 unchanged and 1 … K.
        classes: K.
    """
    assert reference.shape == prediction.shape, (reference.shape, prediction.shape)
    count = classes + 1
    pairs = reference.astype(np.int64) * count + prediction
    matrix: np.ndarray = np.bincount(pairs.ravel(), minlength=count * count)
    return matrix.reshape(count, count)


@dataclass(frozen=True)
class MaskScores:
    """Counts over a split, and the scores that follow from them.

    Attributes:
        classes: Names of the classes of change 1 … K.
        matrix: int64 [K + 1, K + 1], pixels by true and predicted class.
        pairs: Number of masks.
        unchanged: Number of pairs without a change.
        alarmed: Number of these for which some change was predicted.
    """

    classes: tuple[str, ...]
    matrix: np.ndarray
    pairs: int
    unchanged: int
    alarmed: int

    @property
    def iou(self) -> dict[str, float]:
        """IoU × 100 by class name, `unchanged` first; NaN for a class that never occurs."""
        return {
            name: measures["IoU"]
            for name, measures in zip(
                (UNCHANGED, *self.classes), self._of_each_class(), strict=True
            )
        }

    def to_json(self) -> dict[str, Any]:
        """The entry `masks` of scores.json; None for a figure of 0 / 0."""
        of_class = self._of_each_class()
        ious = [measures["IoU"] for measures in of_class]
        whole = int(self.matrix.sum())
        any_true = whole - int(self.matrix[0].sum())
        any_predicted = whole - int(self.matrix[:, 0].sum())
        of_any = _measures(int(self.matrix[1:, 1:].sum()), any_true, any_predicted)
        metrics = {
            MIOU: _mean(ious),
            MIOU_CHANGE: _mean(ious[1:]),
            "IoU": self.iou,
            **{name: of_any[measure] for name, measure in ANY.items()},
            "mF1": _mean([measures["F1"] for measures in of_class[1:]]),
            "classes": dict(zip(self.classes, of_class[1:], strict=True)),
            FALSE_ALARMS: 100 * _ratio(self.alarmed, self.unchanged),
            "pairs": self.pairs,
            "unchanged pairs": self.unchanged,
        }
        return {name: _finite(value) for name, value in metrics.items()}

    def table(self) -> str:
        """The scores in Markdown."""
        return table(self.to_json())

    def _of_each_class(self) -> list[dict[str, float]]:
        right, true, predicted = (
            np.diag(self.matrix),
            self.matrix.sum(axis=1),
            self.matrix.sum(axis=0),
        )
        return [_measures(*map(int, counts)) for counts in zip(right, true, predicted, strict=True)]


class MaskCounter:
    """Counts the masks of a split, one by one."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)
        count = len(self.classes) + 1
        self.matrix = np.zeros((count, count), np.int64)
        self.pairs = self.unchanged = self.alarmed = 0

    def add(self, reference: np.ndarray, prediction: np.ndarray) -> None:
        """Counts one pair's masks, class ids uint8 [H, W] of one size."""
        self.matrix += confusion(reference, prediction, len(self.classes))
        self.pairs += 1
        if not reference.any():
            self.unchanged += 1
            self.alarmed += bool(prediction.any())

    @property
    def scores(self) -> MaskScores:
        """Scores of the masks counted so far."""
        return MaskScores(
            self.classes, self.matrix.copy(), self.pairs, self.unchanged, self.alarmed
        )


COLUMNS = ("IoU", "F1", "precision", "recall")


def rows(metrics: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """The metrics of scores.json as rows of a table: a name, and COLUMNS."""
    any_change = [metrics[name] for name in ("IoU-any", "F1", "precision", "recall")]
    lines = [
        ("unchanged", [metrics["IoU"][UNCHANGED], None, None, None]),
        *((name, [row[one] for one in COLUMNS]) for name, row in metrics["classes"].items()),
        ("changed at all", any_change),
    ]
    return [(name, [_shown(value) for value in values]) for name, values in lines]


def summary(metrics: dict[str, Any]) -> str:
    """The metrics of scores.json over all classes, in a sentence."""
    return (
        f"Masks of {metrics['pairs']:,} pairs: {MIOU} {_shown(metrics[MIOU])}, "
        f"{MIOU_CHANGE} {_shown(metrics[MIOU_CHANGE])}, F1 {_shown(metrics['F1'])}; some change is "
        f"predicted in {_shown(metrics[FALSE_ALARMS])} % of {metrics['unchanged pairs']:,} "
        "unchanged pairs."
    )


def table(metrics: dict[str, Any]) -> str:
    """The metrics of scores.json in Markdown."""
    lines = ["| " + " | ".join(["", *COLUMNS]) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += ["| " + " | ".join([name, *values]) + " |" for name, values in rows(metrics)]
    return "\n".join([*lines, f"\n{summary(metrics)}"]) + "\n"


def _measures(right: int, true: int, predicted: int) -> dict[str, float]:
    """IoU, F1, precision and recall × 100 of a class by its pixels; NaN for 0 / 0."""
    return {
        "IoU": 100 * _ratio(right, true + predicted - right),
        "F1": 100 * _ratio(2 * right, true + predicted),
        "precision": 100 * _ratio(right, predicted),
        "recall": 100 * _ratio(right, true),
    }


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _finite(value: Any) -> Any:
    """None in place of NaN, which is no JSON."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
