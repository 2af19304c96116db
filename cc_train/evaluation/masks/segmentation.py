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

from collections.abc import Sequence

import numpy as np

from cc_train.evaluation.evaluation_files import UNCHANGED, ClassScores, MaskScores


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


def scores(
    classes: Sequence[str], matrix: np.ndarray, pairs: int, unchanged: int, alarmed: int
) -> MaskScores:
    """The scores that follow from counts over a split.

    Args:
        classes: Names of the classes of change 1 … K.
        matrix: int64 [K + 1, K + 1], pixels by true and predicted class.
        pairs: Number of masks.
        unchanged: Number of pairs without a change.
        alarmed: Number of these for which some change was predicted.
    """
    of_class = [
        _scores(*map(int, counts))
        for counts in zip(np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0), strict=True)
    ]
    ious = [one.iou for one in of_class]
    whole = int(matrix.sum())
    any_true, any_predicted = whole - int(matrix[0].sum()), whole - int(matrix[:, 0].sum())
    of_any = _scores(int(matrix[1:, 1:].sum()), any_true, any_predicted)
    return MaskScores(
        miou=_mean(ious),
        miou_change=_mean(ious[1:]),
        iou=dict(zip((UNCHANGED, *classes), ious, strict=True)),
        f1=of_any.f1,
        precision=of_any.precision,
        recall=of_any.recall,
        iou_any=of_any.iou,
        mean_f1=_mean([one.f1 for one in of_class[1:]]),
        classes=dict(zip(classes, of_class[1:], strict=True)),
        false_alarms=_percent(alarmed, unchanged),
        pairs=pairs,
        unchanged_pairs=unchanged,
    )


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
        return scores(self.classes, self.matrix, self.pairs, self.unchanged, self.alarmed)


COLUMNS = ("IoU", "F1", "precision", "recall")


def rows(metrics: MaskScores) -> list[tuple[str, list[str]]]:
    """The scores as rows of a table: a name, and COLUMNS."""
    lines: list[tuple[str, list[float | None]]] = [
        ("unchanged", [metrics.iou[UNCHANGED], None, None, None]),
        *(
            (name, [row.iou, row.f1, row.precision, row.recall])
            for name, row in metrics.classes.items()
        ),
        ("changed at all", [metrics.iou_any, metrics.f1, metrics.precision, metrics.recall]),
    ]
    return [(name, [_shown(value) for value in values]) for name, values in lines]


def summary(metrics: MaskScores) -> str:
    """The scores over all classes, in a sentence."""
    return (
        f"Masks of {metrics.pairs:,} pairs: mIoU {_shown(metrics.miou)}, "
        f"mIoU-change {_shown(metrics.miou_change)}, F1 {_shown(metrics.f1)}; some change is "
        f"predicted in {_shown(metrics.false_alarms)} % of {metrics.unchanged_pairs:,} "
        "unchanged pairs."
    )


def table(metrics: MaskScores) -> str:
    """The scores in Markdown."""
    lines = ["| " + " | ".join(["", *COLUMNS]) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += ["| " + " | ".join([name, *values]) + " |" for name, values in rows(metrics)]
    return "\n".join([*lines, f"\n{summary(metrics)}"]) + "\n"


def _scores(right: int, true: int, predicted: int) -> ClassScores:
    """The scores of a class by its pixels."""
    return ClassScores(
        iou=_percent(right, true + predicted - right),
        f1=_percent(2 * right, true + predicted),
        precision=_percent(right, predicted),
        recall=_percent(right, true),
    )


def _percent(part: int, whole: int) -> float | None:
    return 100 * (part / whole) if whole else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
