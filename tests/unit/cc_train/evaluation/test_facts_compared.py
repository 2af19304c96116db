"""`cc-train compare` shows what is right beside what is alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.records import CHANGE, NO_CHANGE, Facts
from cc_prep.synth.facts import attributes as solid
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.comparing import scored_rows, several_runs, side_by_side
from tests.commands import cc_train

COLORS = ("red", "blue", "green", "gray", "brown")
ATTRIBUTES = [solid(color, "cube", "metal", "small", (0.5, 0.5)) for color in COLORS]
MOVED = [f"the small {color} metal cube moved" for color in COLORS]
METAS = [
    {"key": f"{number}-{kind}", "kind": kind, "change_type": "move" if kind == CHANGE else None,
     "captions": [MOVED[number] if kind == CHANGE else "nothing changed"],
     "facts": (
         Facts("move", attributes, attributes) if kind == CHANGE else Facts("none")).to_json()}
    for number, attributes in enumerate(ATTRIBUTES) for kind in (CHANGE, NO_CHANGE)
]  # fmt: skip
RIGHT = {meta["key"]: meta["captions"][0] for meta in METAS}
SILENT = dict.fromkeys(RIGHT, "nothing changed")


def evaluated(folder: Path, captions: dict[str, str], facts: bool = True) -> str:
    items = coco.items([{**meta, "facts": meta["facts"] if facts else None} for meta in METAS])
    scores = evaluation.evaluate(items, captions, metrics.PLAIN)
    evaluation.write(folder / "evaluation", scores, items, captions)
    return str(folder)


def test_columns_and_gains(tmp_path: Path) -> None:
    """Keeps away: a captioner that always says “nothing changed” and leads by its CIDEr."""
    paths = [evaluated(tmp_path / "silent", SILENT), evaluated(tmp_path / "right", RIGHT)]
    page = tmp_path / "page.html"
    done = cc_train("compare", *paths, "--out", page, "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    silent, right = content["groups"]["total"]
    assert list(silent)[:6] == ["system", "source", "pairs", "told apart", "type", "exact"]
    assert [silent[name] for name in ("told apart", "type", "exact")] == [50, 0, 0]
    assert [right[name] for name in ("told apart", "type", "exact")] == [100, 100, 100]
    assert content["groups"]["no change"][0]["told apart"] == 100
    assert {row["exact"] for row in content["groups"]["semantic change"]} == {0, 100}
    [gain] = content["exact gained"]
    assert (gain["difference"], gain["low"], gain["high"]) == (100, 100, 100)
    assert len(content["CIDEr gained"]) == 1
    assert "<th>told apart</th>" in page.read_text()
    shown = cc_train("compare", *paths).stdout
    assert "right over silent: exact +100.0 (+100.0 … +100.0, 95 %)" in shown
    assert "note: type and exact: share of the changed pairs" in shown


@pytest.mark.parametrize("order", ["a,b", "b,a"])
def test_the_mean_of_runs_with_and_without_facts_is_refused(tmp_path: Path, order: str) -> None:
    """Keeps away: a KeyError, and in the other order a figure that vanished without a word."""
    evaluated(tmp_path / "a", RIGHT)
    evaluated(tmp_path / "b", SILENT, facts=False)
    runs = ",".join(str(tmp_path / name) for name in order.split(","))
    with pytest.raises(UserError, match="not both scored with the facts of the same pairs"):
        several_runs.read(f"mine={runs}")


def test_one_without_facts(tmp_path: Path) -> None:
    paths = [evaluated(tmp_path / "a", RIGHT), evaluated(tmp_path / "b", SILENT, facts=False)]
    rows = [scored_rows.read(path) for path in paths]
    assert "exact" not in rows[1].groups["total"]
    assert rows[1].exact == {}
    assert [gain.measure for gain in side_by_side.intervals(rows)] == ["CIDEr"]
    done = cc_train("compare", *paths)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("facts", [[], {"shares": {}}, {"told apart": 3}])
def test_damaged_facts(tmp_path: Path, facts: object) -> None:
    path = Path(evaluated(tmp_path / "a", RIGHT)) / "evaluation/scores.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "facts": facts or [3]}))
    with pytest.raises(UserError, match="no scores"):
        scored_rows.read(str(tmp_path / "a"))
