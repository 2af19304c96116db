"""Scores by group, and the check with swapped images."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from cc_prep.records import CHANGE, NO_CHANGE
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.evaluation_files import Swapped
from cc_train.report import curves

PAIRS = {
    "a": ("add", CHANGE, ["a red cube has been added", "there is a new red cube"]),
    "b": ("drop", CHANGE, ["the small ball is gone", "someone removed the small ball"]),
    "c": (None, NO_CHANGE, ["no change was made", "the scene is the same"]),
    "d": (None, NO_CHANGE, ["nothing has changed", "there is no change"]),
}
ITEMS = coco.items(
    [
        {"key": key, "change_type": change, "kind": kind, "captions": captions}
        for key, (change, kind, captions) in PAIRS.items()
    ]
)
PREDICTIONS = {
    "a": "a red cube has been added",
    "b": "no change was made",
    "c": "no change was made",
    "d": "a cube",
}


def test_groups_are_scored_by_themselves() -> None:
    scores = evaluation.evaluate(ITEMS, PREDICTIONS, metrics.PLAIN)
    assert list(scores.counts) == ["total", "semantic change", "no change", "add", "drop"]
    assert scores.counts["semantic change"] == 2
    alone = metrics.score({"b": PAIRS["b"][2]}, {"b": PREDICTIONS["b"]}, metrics.PLAIN)
    assert scores.groups["drop"].corpus == alone.corpus
    assert scores.groups["total"].items["a"]["BLEU-4"] == pytest.approx(100, abs=1e-3)


def test_one_group_that_is_all_is_not_said_twice() -> None:
    items = [item for item in ITEMS if "semantic change" in item.groups]
    scores = evaluation.evaluate(items, {i.id: PREDICTIONS[i.id] for i in items}, ["CIDEr"])
    assert list(scores.counts) == ["total", "add", "drop"]


def test_zeros_of_right_captions_are_explained() -> None:
    """Keeps away: a row of right captions that reads as if none were."""
    assert evaluation.NO_CIDER in evaluation.table(
        evaluation.evaluate(ITEMS, PREDICTIONS, ["BLEU-1", "CIDEr"])
    )
    changed = [item for item in ITEMS if "semantic change" in item.groups]
    one_group = [replace(item, groups=("total",)) for item in changed]
    of_all = {item.id: item.references[0] for item in one_group}
    assert evaluation.NO_CIDER not in evaluation.table(
        evaluation.evaluate(one_group, of_all, ["BLEU-1", "CIDEr"])
    )


def test_swapped_pairs() -> None:
    swapped = {**PREDICTIONS, "a": "the red cube is gone"}
    check = evaluation.swap_check(ITEMS, PREDICTIONS, swapped)
    assert isinstance(check, Swapped)
    assert (check.pairs, check.same) == (2, 0.5)
    assert check.cider > check.cider_swapped
    assert evaluation.swap_check(ITEMS[2:], PREDICTIONS, swapped).to_json() == {}


def test_files_can_be_read_back(tmp_path: Path) -> None:
    scores = evaluation.evaluate(ITEMS, PREDICTIONS, metrics.PLAIN)
    evaluation.write(tmp_path, scores, ITEMS, PREDICTIONS)
    assert coco.read_predictions([str(tmp_path / "predictions.json")]) == PREDICTIONS
    items = coco.read_references(str(tmp_path / "references.json"))
    assert [(i.id, i.references, i.groups) for i in items] == [
        (i.id, i.references, i.groups) for i in ITEMS
    ]
    each = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    assert [row["id"] for row in each] == list("abcd")
    assert re.search(r"\| drop +\| +1 \|", (tmp_path / "table.md").read_text())


def test_curves_of_a_log_cut_short(tmp_path: Path) -> None:
    lines = [json.dumps({"step": s, "part": "train", "msm": 5 - s / 100}) for s in range(1000)]
    (tmp_path / "log.jsonl").write_text("\n".join([*lines, '{"step": 7, "pa']))
    log = curves.read(tmp_path)
    assert len(log["train", "msm"]) == 1000
    [curve] = curves.draw(log)
    assert (curve.first, curve.last) == (0, 999)
    assert (curve.low, curve.high, curve.value) == (5 - 9.99, 5, 5 - 9.99)
    assert curve.path.count("L") < curves.MAX_POINTS
    assert curves.read(tmp_path / "nowhere") == {}


def test_the_curves_that_matter_come_first() -> None:
    """Keeps away: a page of flat lines at 0 before the loss, and "nothing logged" after one log."""
    log = {
        ("train", "align"): [(1, 0.0), (2, 0.0)],
        ("train", "accuracy"): [(1, 0.5), (2, 0.6)],
        ("train", "loss"): [(1, 3.0), (2, 2.0)],
        ("validation", "CIDEr"): [(2, 80.0)],
        ("validation", "BLEU-4"): [(2, 0.0)],
        ("validation", "loss"): [(2, 2.5)],
    }
    drawn = [(curve.part, curve.name) for curve in curves.draw(log)]
    assert drawn == [
        ("train", "loss"),
        ("validation", "loss"),
        ("validation", "CIDEr"),
        ("train", "accuracy"),
    ]
    assert curves.zeros(log) == ["train: align", "validation: BLEU-4"]
