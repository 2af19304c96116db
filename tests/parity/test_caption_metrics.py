"""Our scores are the official scorer's, and our tokens those of its Java tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from cc_prep.errors import UserError
from cc_train import score
from cc_train.evaluation.captions import metrics, ptb
from cc_train.evaluation.captions.cider import cider
from tests.conftest import ROOT, golden

FILES = [path for folder in golden("caption_metrics") for path in sorted(folder.glob("*.json"))]
SHARED = ROOT.parent / "shared" / "golden" / "caption_metrics" / "spot_the_diff_300.json"
FILES += [SHARED] if SHARED.exists() else []  # its captions may not be copied into the project
NAMES = {"ROUGE_L": "ROUGE-L"}


def test_there_are_golden_vectors() -> None:
    assert FILES


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_official_scores(file: Path) -> None:
    golden = json.loads(file.read_text())
    tokens = metrics.tokenised(golden["references"], golden["candidates"])
    assert tokens[0] == golden["tokenised_references"]
    assert tokens[1] == {
        id: _one(candidate) for id, candidate in golden["tokenised_candidates"].items()
    }
    scores = metrics.score_tokens(tokens)
    for name, expected in golden["corpus"].items():
        name_here = NAMES.get(name, name)
        assert scores.corpus[name_here] == pytest.approx(100 * expected, abs=1e-6), name
        for id, value in zip(golden["ids"], golden["per_item"][name], strict=True):
            assert scores.items[id][name_here] == pytest.approx(100 * value, abs=1e-6), (name, id)


def _one(caption: list[str] | str) -> str:
    return caption if isinstance(caption, str) else caption[0]


def test_nothing_against_nothing_is_scored_as_the_official_scorer_does() -> None:
    """Keeps away: a promise of zeros that ROUGE-L does not keep."""
    references, predictions = {"a": ["…"], "b": ["a cat sat"]}, {"a": "", "b": ""}
    items = metrics.score(references, predictions, metrics.PLAIN).items
    assert {name for name, value in items["a"].items() if value} == {"ROUGE-L"}
    assert not any(items["b"].values())
    official = Rouge().compute_score({"a": [""], "b": ["a cat sat"]}, {"a": [""], "b": [""]})[1]
    assert [items[id]["ROUGE-L"] for id in "ab"] == [100 * value for value in official]


WORDS = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=7).map(" ".join)
ITEMS = st.lists(st.tuples(st.lists(WORDS, min_size=1, max_size=3), WORDS), min_size=1, max_size=5)


@given(ITEMS)
def test_cider_is_the_official_scorer_s(items: list[tuple[list[str], str]]) -> None:
    """Its clipping, its penalty, n-grams that no reference has, captions without any."""
    references = {f"{n}": captions for n, (captions, _) in enumerate(items)}
    candidates = {f"{n}": caption for n, (_, caption) in enumerate(items)}
    total, each = cider(references, candidates)
    if not any(map(any, references.values())):  # the official one raises ValueError
        assert total == 0
        return
    official = Cider().compute_score(
        references, {id: [caption] for id, caption in candidates.items()}
    )
    assert total == pytest.approx(official[0], abs=1e-12)
    assert list(each.values()) == pytest.approx(list(official[1]), abs=1e-12)
    assert list(each) == list(references)


def test_without_java_the_rest_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    scores = metrics.score({"a": ["the cube moved"], "b": ["it is gone"]}, {"a": "a cube", "b": ""})
    assert set(scores.corpus) == {*metrics.PLAIN, "METEOR", metrics.MEAN}
    assert scores.left_out == {"SPICE": "no Java on the PATH"}


def test_the_mean_of_remote_sensing() -> None:
    """CCExpert's table prints 65.49, 41.82, 76.55, 143.32, and 81.80 for them."""
    printed = dict(zip(metrics.MEAN_OF, (65.49, 41.82, 76.55, 143.32), strict=True))
    scores = metrics.Scores(dict(printed), {"a": dict(printed)})
    metrics._put_mean(scores)
    assert round(scores.corpus["S*m"], 2) == round(scores.items["a"]["S*m"], 2) == 81.80
    references, predictions = {"a": ["a cube moved"], "b": ["it is gone"]}, {"a": "a cube", "b": ""}
    alone = metrics.score(references, predictions, ["S*m"])
    every = metrics.score(references, predictions)
    assert alone.corpus == {"S*m": every.corpus["S*m"]}
    assert set(alone.items["a"]) == {"S*m"}
    assert "S*m:BLEU-4,METEOR,ROUGE-L,CIDEr" in score(predictions, references).signature


def test_without_meteor_there_is_no_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a mean of three measures under the name of the mean of four."""
    monkeypatch.setattr(metrics, "_meteor", Mock(side_effect=metrics.Unavailable("gone")))
    scores = metrics.score({"a": ["a cube moved"]}, {"a": "a cube"})
    assert scores.left_out | {"SPICE": ""} == {
        "METEOR": "gone", "S*m": "it needs METEOR", "SPICE": ""
    }  # fmt: skip
    assert "S*m" not in scores.corpus


def test_what_is_missing_is_named_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a measure that is missing without a word, beside another one that is."""
    for name in ("_meteor", "_spice"):
        monkeypatch.setattr(metrics, name, Mock(side_effect=metrics.Unavailable(f"no {name}")))
    tokens = metrics.tokenised({"a": ["a cube"], "b": ["b"]}, {"a": "a cube", "b": "b"})
    for scores in metrics.score_groups(tokens, {"all": {"a", "b"}, "one": {"b"}}).values():
        assert scores.left_out == {
            "METEOR": "no _meteor", "SPICE": "no _spice", "S*m": "it needs METEOR"
        }  # fmt: skip


def test_captions_that_break_meteor_s_wrapper() -> None:
    """Line breaks and its separator inside captions kill the official wrapper's process.

    Keeps away: its separator as a word that matches.
    """
    nasty = {"a": "one ||| two\nthree", "b": ""}
    scores = metrics.score({"a": ["one two three"], "b": ["x\ny"]}, nasty, ["METEOR"])
    assert scores.items["a"]["METEOR"] > 30
    assert scores.items["b"]["METEOR"] == 0


@pytest.mark.parametrize("predictions", [{"a": "x"}, {"a": "x", "b": "y", "c": "z"}])
def test_ids_that_do_not_fit(predictions: dict[str, str]) -> None:
    with pytest.raises(UserError, match="1 ids are without"):
        metrics.score({"a": ["x"], "b": ["y"]}, predictions)


def test_tokens_of_odd_captions() -> None:
    tokens_of = {
        "He can't, she won't; they'll.": "he ca n't she wo n't they 'll",
        "t-shirt (white) at 5:30 p.m.": "t-shirt -lrb- white -rrb- at 5:30 p.m.",
        "  ": "",
        "black & white, 50%": "black & white 50 %",
    }
    assert {text: ptb.tokenize(text) for text in tokens_of} == tokens_of
