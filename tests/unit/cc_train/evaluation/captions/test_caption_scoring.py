"""`cc_train.score`: the measures in one call."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cc_prep.errors import UserError
from cc_train import score
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco

REFERENCES = {"a": ["the ball is gone", "no ball"], "b": ["nothing changed"]}
PREDICTIONS = {"a": "the ball is gone", "b": "a cube moved"}
FAST = ("BLEU-4", "CIDEr")


def test_mappings_lists_and_files_give_the_same_scores(tmp_path: Path) -> None:
    scores = score(PREDICTIONS, REFERENCES, measures=FAST)
    assert list(scores.corpus) == list(FAST)
    assert scores.items["a"]["CIDEr"] > 100 > scores.items["b"]["CIDEr"] == 0
    lists = score(list(PREDICTIONS.values()), list(REFERENCES.values()), measures=FAST)
    assert lists.corpus == scores.corpus
    assert lists.items == {"0": scores.items["a"], "1": scores.items["b"]}
    for name, value in (("predictions", PREDICTIONS), ("references", REFERENCES)):
        (tmp_path / name).write_text(json.dumps(value))
    files = score(tmp_path / "predictions", str(tmp_path / "references"), measures=FAST)
    assert files.corpus == scores.corpus
    # With the command's signature: the ids count, the order and the form do not.
    items = coco.read_references(str(tmp_path / "references"))
    evaluated = evaluation.evaluate(items, PREDICTIONS, FAST)
    assert files.signature == scores.signature == evaluated.signature.line
    assert lists.signature != scores.signature


def test_a_list_has_no_order_beside_a_file(tmp_path: Path) -> None:
    """Keeps away: a list that is taken for the ids 0, 1, …, which the file may have elsewhere."""
    images = [{"id": 1}, {"id": 0}]
    rows = [{"image_id": 1, "caption": "it moved"}, {"image_id": 0, "caption": "a dog"}]
    (tmp_path / "r.json").write_text(json.dumps({"images": images, "annotations": rows}))
    with pytest.raises(UserError, match=r"a list of predictions for .* Give \{id: caption"):
        score(["it moved", "a dog"], tmp_path / "r.json", measures=FAST)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="no measure is named CIDEr-D"):
        score(PREDICTIONS, REFERENCES, measures=["CIDEr-D"])
    with pytest.raises(UserError, match="1 ids are without a prediction, such as b"):
        score({"a": "x"}, REFERENCES, measures=FAST)
    with pytest.raises(UserError, match="references of a are one text"):
        score(PREDICTIONS, {"a": "the ball is gone", "b": ["x"]}, measures=FAST)


@pytest.mark.parametrize(
    ("predictions", "references", "line"),
    [
        (["a", None], [["a"], ["b"]], "the prediction of 1 is no text but None. Give a caption"),
        ({"x": math.nan}, {"x": ["a"]}, "the prediction of x is no text but nan"),
        (["a", "b"], [["a"], None], "the references of 1 are no texts. Give a list of captions"),
        (["a", "b"], [["a"], [None]], "the references of 1 are no texts"),
        ({1: "a", "1": "b"}, {1: ["a"]}, "two ids are called 1. Give ids that differ as text"),
        ({"1": "a"}, {"1": ["a"], 1: ["b"]}, "two ids are called 1"),
    ],
)
def test_what_is_no_caption_is_refused(predictions: Any, references: Any, line: str) -> None:
    """Keeps away: an AttributeError for a model that gave nothing, and one of two captions of an id
    that is scored without a word.
    """
    with pytest.raises(UserError) as caught:
        score(predictions, references, measures=FAST)
    assert str(caught.value).startswith(line)
