"""Files of an evaluation that somebody edited: one line, or a page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth.facts import attributes as solid
from cc_train.evaluation import evaluation, evaluation_files, score_captioner
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.evaluation_files import (
    Contradictions,
    Counted,
    Faithfulness,
    ScoresFile,
    checked,
)
from cc_train.evaluation.masks import segmentation
from tests.commands import Done, cc_train, zoo

RED, BLUE = (solid(name, "cube", "metal", "small", (0.5, 0.5)) for name in ("red", "blue"))
ITEMS = coco.items(
    [
        {"key": f"{number}-{kind}", "kind": kind, "change_type": "color" if changed else None,
         "facts": (
             Facts("color", RED, BLUE) if changed else Facts("none")).to_json(),
         "captions": [f"the {number} cube turned blue" if changed else "nothing changed"]}
        for number in ("red", "small") for kind, changed in ((CHANGE, True), (NO_CHANGE, False))
    ]
)  # fmt: skip
CAPTIONS = {item.id: item.references[0] for item in ITEMS}
GONE = object()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with an evaluation that has all that one can have."""
    share = Counted.of(1, 2, count=1, pairs=2)
    neither = Contradictions(change_without_a_mask=share, no_change_with_a_mask=share)
    scores = replace(
        evaluation.evaluate(ITEMS, CAPTIONS, metrics.PLAIN),
        masks=segmentation.scores(("change",), np.array([[60, 20], [0, 20]]), 4, 2, 1),
        faithfulness=Faithfulness(
            predicted_masks=share,
            true_masks=share,
            masks_of_other_pairs=share,
            contradictions=neither,
        ),
        swapped=evaluation.swap_check(ITEMS, CAPTIONS, CAPTIONS),
    )
    evaluation.write(tmp_path / "run/evaluation", scores, ITEMS, CAPTIONS)
    (tmp_path / "run/settings.json").write_text('{"system": "pair"}')
    return tmp_path / "run"


def commands(run: Path) -> dict[str, Done]:
    about = ("--name", "a", "--system", "A", "--dataset", "mine", "--command", "make it")
    rows = run.parent / "zoo"
    return {
        "report": cc_train("report", run),
        "compare": cc_train("compare", run, run),
        "zoo": zoo("add", run / "evaluation", "--zoo", rows, *about),
    }


def changed(content: Any, path: Sequence[Any], value: Any) -> Any:
    """JSON with another value at a path, or without it."""
    if not path:
        return value
    copy = {**content} if isinstance(content, dict) else [*content]
    if value is GONE and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(content[path[0]], path[1:], value)
    return copy


SCORES = [
    ((), [3]),
    (("groups",), GONE),
    (("groups", "total"), GONE),
    (("groups", "total", "pairs"), "4"),
    (("groups", "total", "CIDEr"), math.nan),
    (("groups", "no change", "BLEU-4"), "high"),
    (("groups", "no change", "pairs"), GONE),
    (("signature",), "none"),
    (("signature",), GONE),
    (("left_out",), 3),
    (("swapped",), {"same": 1.0}),
    (("facts", "told apart"), GONE),
    (("facts", "shares", "exact", "share"), math.nan),
    (("facts", "shares", "exact", "not said"), GONE),
    (("facts", "confusion", "color"), GONE),
    (("facts", "exact by type", "color"), None),
    (("masks", "classes", "change", "IoU"), GONE),
    (("masks", "IoU"), 3.0),
    (("masks", "pairs"), None),
    (("faithfulness", "contradictions"), {}),
    (("faithfulness", "true masks", "low"), math.inf),
]
LINES = [
    ((), [3]),
    (("id",), 7),
    (("caption",), None),
    (("references",), "a cube"),
    (("groups",), GONE),
    (("scores",), GONE),
    (("scores", "CIDEr"), math.nan),
    (("exact",), GONE),
    (("facts", "before", "location"), "left"),
    (("facts", "after"), GONE),
    (("facts", "type"), "growth"),
]


@pytest.mark.parametrize(("path", "value"), SCORES)
def test_scores_that_somebody_edited(run: Path, path: Sequence[Any], value: Any) -> None:
    """Keeps away: a traceback, or a page with a figure that is none."""
    file = run / "evaluation/scores.json"
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    for name, done in commands(run).items():
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (name, done.stderr)
        assert "scores.json: " in done.stderr
        assert "valuate " in done.stderr, "the remedy"
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(("path", "value"), LINES)
def test_pairs_that_somebody_edited(run: Path, path: Sequence[Any], value: Any) -> None:
    file = run / "evaluation/items.jsonl"
    first, *others = file.read_text().splitlines()
    edited = json.dumps(changed(json.loads(first), path, value))
    file.write_text("\n".join([*others, edited]))
    for name in ("report", "compare"):
        done = commands(run)[name]
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), (name, done.stderr)
        assert f"items.jsonl: damaged (pair {len(ITEMS)}: " in done.stderr
        assert "Evaluate again" in done.stderr
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["scores.json", "items.jsonl"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_files_that_are_no_json(run: Path, name: str, content: bytes) -> None:
    (run / "evaluation" / name).write_bytes(content)
    for command in ("report", "compare"):
        done = commands(run)[command]
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr


def test_what_was_written_is_read(run: Path) -> None:
    """Keeps away: a field that is lost, or has another name, on the way through a file."""
    content = json.loads((run / "evaluation/scores.json").read_text())
    assert checked(ScoresFile, content).to_json() == content
    lines = map(json.loads, (run / "evaluation/items.jsonl").read_text().splitlines())
    pairs = evaluation_files.items(run / "evaluation/items.jsonl")
    assert json.loads(json.dumps([pair.to_json() for pair in pairs])) == [*lines]


def test_evaluations_with_less_or_more_are_shown(run: Path) -> None:
    """Keeps away: a check that refuses what not every evaluation has."""
    for name, done in commands(run).items():
        assert done.returncode == 0, (name, done.stderr)
    file = run / "evaluation/scores.json"
    content = json.loads(file.read_text())
    for name in ("swapped", "masks", "faithfulness"):
        del content[name]
    content["groups"]["no change"].pop("BLEU-1")
    file.write_text(json.dumps({**content, "mine": 1}))
    for command in ("report", "compare"):
        done = commands(run)[command]
        assert done.returncode == 0, done.stderr


def test_logs_and_settings_that_somebody_edited(run: Path) -> None:
    """Keeps away: a traceback for a line of the log, a picture or a setting of another kind."""
    line = json.dumps({"step": 1, "part": "train", "total": 3.0})
    odd = ["5", "[]", '{"step": Infinity, "part": "train"}', '{"step": 1, "part": []}', line]
    many = [line.replace("3.0", "1" * 400), line.replace('"step": 1', '"step": 2')]
    (run / "log.jsonl").write_bytes("\n".join([*odd, *many]).encode() + b"\n\xff")
    (run / "pictures").mkdir()
    (run / "pictures/mine.png").write_bytes(b"")
    for settings in ('{"system": "pair", "text": null}', '{"text": {"count": "37"}}'):
        (run / "settings.json").write_text(settings)
        done = cc_train("report", run)
        assert done.returncode == 0, done.stderr
    assert "<strong>train: total</strong> 3" in (run / "report.html").read_text()
    (run / "settings.json").write_text("{")
    done = cc_train("report", run)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "settings.json: not JSON" in done.stderr
    assert "Restore it, or train again" in done.stderr


def test_an_evaluation_that_breaks_off_has_no_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the scores of one evaluation with the captions of an earlier one."""
    items = coco.items([{"key": "a", "kind": "change", "captions": ["it moved"]}])
    for caption in ("it moved", "nothing"):
        captions = {"a": caption}
        result = evaluation.evaluate(items, captions, ["CIDEr"])
        if caption == "it moved":
            evaluation.write(tmp_path, result, items, captions)
            assert (tmp_path / "scores.json").exists()
            continue
        with monkeypatch.context() as patch:
            patch.setattr(evaluation, "table", Mock(side_effect=OSError("no space")))
            with pytest.raises(OSError, match="no space"):
                evaluation.write(tmp_path, result, items, captions)
    assert not (tmp_path / "scores.json").exists()


def test_an_evaluation_in_the_place_of_a_file_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: captions of an hour, and then "[Errno 20] Not a directory"."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setattr(score_captioner, "check", Mock())
    monkeypatch.setattr(score_captioner, "_captions", Mock(side_effect=AssertionError))
    with pytest.raises(UserError, match=r"file/x: .*Give another --out"):
        score_captioner.score(Mock(), [], ITEMS, 1, Mock(), path=file / "x")
