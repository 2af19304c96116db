"""Scores of masks are what plain NumPy gives, pixel by pixel, and what the conventions say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cc_train.evaluation.evaluation_files import MaskScores, checked
from cc_train.evaluation.masks import segmentation
from cc_train.evaluation.masks.segmentation import MaskCounter


@st.composite
def pairs_of_masks(draw: st.DrawFn) -> tuple[int, list[tuple[np.ndarray, np.ndarray]]]:
    """How many classes of change, and true and predicted masks of several sizes."""
    classes = draw(st.integers(1, 3))
    listed = []
    for _ in range(draw(st.integers(1, 4))):
        shape = draw(arrays.array_shapes(min_dims=2, max_dims=2, max_side=6))
        ids = st.integers(0, draw(st.integers(0, classes)))
        mask = arrays.arrays(np.uint8, shape, elements=ids)
        listed.append((draw(mask), draw(mask)))
    return classes, listed


def plainly(true: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Measures of a class by booleans over all pixels of a split, × 100."""
    tp, fp, fn = (true & predicted).sum(), (~true & predicted).sum(), (true & ~predicted).sum()

    def share(part: int, whole: int) -> float:
        return 100 * part / whole if whole else math.nan

    return {
        "IoU": share(tp, tp + fp + fn),
        "F1": share(2 * tp, 2 * tp + fp + fn),
        "precision": share(tp, tp + fp),
        "recall": share(tp, tp + fn),
    }


def close(figure: float | None, value: float) -> bool:
    return figure is None if math.isnan(value) else figure == pytest.approx(value)


@settings(max_examples=60)
@given(pairs_of_masks())
def test_equal_to_plain_numpy(case: tuple[int, list[tuple[np.ndarray, np.ndarray]]]) -> None:
    """Keeps away: rows for columns, a mean over images, and an absent class as a 0."""
    classes, masks = case
    names = [f"c{i}" for i in range(1, classes + 1)]
    counter = MaskCounter(names)
    for reference, prediction in masks:
        counter.add(reference, prediction)
    figures = counter.scores.to_json()
    true, predicted = (np.concatenate([pair[i].ravel() for pair in masks]) for i in (0, 1))
    of_class = [plainly(true == i, predicted == i) for i in range(classes + 1)]
    known = [one["IoU"] for one in of_class if not math.isnan(one["IoU"])]
    assert close(figures["mIoU"], float(np.mean(known)))
    changes = [one["IoU"] for one in of_class[1:] if not math.isnan(one["IoU"])]
    assert close(figures["mIoU-change"], float(np.mean(changes)) if changes else math.nan)
    for name, one in zip(["unchanged", *names], of_class, strict=True):
        assert close(figures["IoU"][name], one["IoU"])
    for name, one in zip(names, of_class[1:], strict=True):
        assert all(close(figures["classes"][name][key], value) for key, value in one.items())
    of_any = plainly(true > 0, predicted > 0)
    assert close(figures["IoU-any"], of_any["IoU"])
    assert all(close(figures[key], of_any[key]) for key in ("F1", "precision", "recall"))
    unchanged = [bool(p.any()) for r, p in masks if not r.any()]
    alarms = 100 * float(np.mean(unchanged)) if unchanged else math.nan
    assert close(figures["false alarms"], alarms)
    assert (figures["pairs"], figures["unchanged pairs"]) == (len(masks), len(unchanged))


def counted(*masks: tuple[list[list[int]], list[list[int]]], names: tuple[str, ...]) -> Any:
    counter = MaskCounter(names)
    for reference, prediction in masks:
        counter.add(np.array(reference, np.uint8), np.array(prediction, np.uint8))
    return counter.scores.to_json()


def test_the_conventions_by_hand() -> None:
    """Keeps away: a class confused with another one as a right "changed at all"."""
    figures = counted(
        ([[0, 0, 1, 1], [0, 0, 2, 2]], [[0, 1, 1, 1], [0, 0, 1, 2]]),
        ([[0, 0]], [[0, 0]]),
        ([[0, 0]], [[2, 0]]),
        names=("road", "building"),
    )
    # unchanged: 3 + 2 + 1 right of 8 true and 6 predicted; road: 2 of 2 and 4; building: 1 of 2, 2.
    assert figures["IoU"] == {
        "unchanged": 100 * 6 / 8,
        "road": 100 * 2 / 4,
        "building": pytest.approx(100 / 3),
    }
    assert figures["mIoU"] == pytest.approx((75 + 50 + 100 / 3) / 3)
    assert figures["mIoU-change"] == pytest.approx((50 + 100 / 3) / 2)
    assert (figures["precision"], figures["recall"]) == (pytest.approx(100 * 4 / 6), 100)
    assert figures["F1"] == pytest.approx(80)
    assert figures["F1"] == pytest.approx(
        100 * 2 * (figures["IoU-any"] / 100) / (1 + figures["IoU-any"] / 100)
    )
    assert figures["mF1"] == pytest.approx((100 * 4 / 6 + 50) / 2)
    assert (figures["false alarms"], figures["pairs"], figures["unchanged pairs"]) == (50, 3, 2)


def test_a_table_of_what_is_known() -> None:
    """Keeps away: "nan" in a table, and a class that is nowhere as one that is wrong."""
    figures = counted(([[0, 1]], [[0, 1]]), names=("road", "building"))
    assert figures["IoU"]["building"] is None
    assert (figures["mIoU"], figures["mIoU-change"]) == (100, 100)
    text = segmentation.table(checked(MaskScores, figures))
    assert text.startswith("|  | IoU | F1 | precision | recall |\n|---|---|---|---|---|\n| unch")
    assert "| road | 100.00 | 100.00 | 100.00 | 100.00 |" in text
    assert "| building | – | – | – | – |" in text
    assert (
        "mIoU 100.00, mIoU-change 100.00, F1 100.00; some change is predicted in – % of 0" in text
    )
