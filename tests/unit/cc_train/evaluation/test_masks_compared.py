"""`cc-train compare` shows how good masks are beside how good captions are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.comparing import scored_rows, several_runs, side_by_side
from cc_train.evaluation.evaluation_files import Contradictions, Counted, Faithfulness
from cc_train.evaluation.masks import segmentation
from tests.commands import cc_train

ITEMS = coco.items(
    [{"key": f"k{i}", "captions": [f"the {word} cube moved"]} for i, word in enumerate("abc")]
)
NONE = Counted.of(0, 0, count=0, pairs=0)
FAITHFUL = Counted.of(3, 4, count=3, pairs=4)
COLUMNS = ["mIoU", "mIoU-change", "F1", "faithful"]


def evaluated(
    folder: Path, matrix: Any = None, classes: tuple[str, ...] = ("change",), faithful: Any = None
) -> str:
    captions = {item.id: item.references[0] for item in ITEMS}
    scores = evaluation.evaluate(ITEMS, captions, metrics.PLAIN)
    if matrix is not None:
        scores = replace(scores, masks=segmentation.scores(classes, np.array(matrix), 3, 0, 0))
    if faithful is not None:
        faithfulness = Faithfulness(
            predicted_masks=faithful,
            true_masks=NONE,
            masks_of_other_pairs=NONE,
            contradictions=Contradictions(change_without_a_mask=NONE, no_change_with_a_mask=NONE),
        )
        scores = replace(scores, faithfulness=faithfulness)
    evaluation.write(folder / "evaluation", scores, ITEMS, captions)
    return str(folder)


def test_columns_of_masks(tmp_path: Path) -> None:
    """Keeps away: two captioners with the same sentences, of which one masks nothing, that look
    the same side by side."""
    paths = [
        evaluated(tmp_path / "plain"),
        evaluated(tmp_path / "chain", [[60, 20], [0, 20]], faithful=FAITHFUL),
    ]
    page = tmp_path / "page.html"
    done = cc_train("compare", *paths, "--json", "--out", page)
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    plain, chain = content["groups"]["total"]
    assert not {*plain} & {*COLUMNS}
    assert list(chain)[-4:] == COLUMNS
    assert [chain[name] for name in COLUMNS] == pytest.approx([62.5, 50, 200 / 3, 75])
    assert any("faithful: share of the captions of a change" in note for note in content["notes"])
    assert "<th>mIoU-change</th>" in page.read_text()
    latex = cc_train("compare", *paths, "--latex").stdout
    assert r"\textbf{62.5}" in latex
    assert "--" in latex


def test_figures_that_are_not_there_are_no_zeros(tmp_path: Path) -> None:
    """Keeps away: an mIoU-change of 0, or a traceback, where no pair is changed, and a share of no
    captions."""
    path = evaluated(tmp_path / "a", [[100, 0], [0, 0]], faithful=NONE)
    assert [name for name in COLUMNS if name in scored_rows.read(path).groups["total"]] == ["mIoU"]


def test_masks_of_other_pairs_or_classes_are_said(tmp_path: Path) -> None:
    """Keeps away: the mIoU of two classes beside that of one, as if they were of one kind."""
    one = evaluated(tmp_path / "one", [[60, 20], [0, 20]])
    two = evaluated(tmp_path / "two", np.diag([8, 1, 1]), ("road", "building"))
    rows = [scored_rows.read(path) for path in (one, two)]
    start = "not over the same masks"
    [note] = [note for note in side_by_side.notes(rows) if note.startswith(start)]
    assert note == f"{start} (one: 3 of change; two: 3 of building, road)"
    assert not any(note.startswith(start) for note in side_by_side.notes(rows[:1]))


def test_seeds_have_a_mean_of_their_masks(tmp_path: Path) -> None:
    """Keeps away: `NAME=RUN,RUN` that loses the masks."""
    matrices = ([[60, 20], [0, 20]], [[80, 0], [0, 20]])
    paths = [evaluated(tmp_path / str(n), matrix) for n, matrix in enumerate(matrices)]
    row = several_runs.read(f"chain={','.join(paths)}")
    assert row.groups["total"]["mIoU-change"] == 75
    assert row.spread["total"]["mIoU-change"] == pytest.approx(35.36, abs=0.01)
    assert row.masks == "3 of change"


@pytest.mark.parametrize(
    "damage", [{"masks": 3}, {"masks": {"mIoU": "high"}}, {"faithfulness": {"predicted masks": 3}}]
)
def test_damaged_masks(tmp_path: Path, damage: dict[str, Any]) -> None:
    """Keeps away: a traceback for a scores.json that somebody edited."""
    evaluated(tmp_path / "a", [[60, 20], [0, 20]], faithful=FAITHFUL)
    path = tmp_path / "a/evaluation/scores.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(UserError, match="no scores"):
        scored_rows.read(str(tmp_path / "a"))
