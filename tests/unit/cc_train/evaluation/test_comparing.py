"""Evaluations side by side: the tables, the interval, and what is not comparable."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from cc_prep.errors import UserError
from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, metrics
from cc_train.evaluation.comparing import bootstrap, published_rows, scored_rows, side_by_side
from cc_train.report import comparison as comparison_page
from cc_train.report import latex, page
from cc_train.runs import run_folder
from cc_train.sharing import model_card
from tests.commands import Done, cc_train
from tests.conftest import ROOT

FACTS = [
    {"key": f"k{i}", "image_id": f"{i}.png", "kind": kind, "change_type": None,
     "captions": [f"the {word} cube moved", f"someone moved the {word} cube"]}
    for i, (kind, word) in enumerate(
        (kind, word) for kind in ("change", "no_change") for word in ("red", "blue", "tiny", "dim")
    )
]  # fmt: skip
ITEMS = coco.items(FACTS)
GOOD = {item.id: item.references[0] for item in ITEMS}
BAD = {**GOOD, "k0": "a dog", "k5": "the blue cube"}


def evaluated(folder: Path, predictions: dict[str, str], items: list[coco.Item] = ITEMS) -> str:
    scores = evaluation.evaluate(items, predictions, metrics.PLAIN)
    evaluation.write(folder / "evaluation", scores, items, predictions)
    return str(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [evaluated(tmp_path / "bad", BAD), evaluated(tmp_path / "<b>good", GOOD)]


def test_tables_lead_with_the_total_and_end_with_the_best(runs: list[str]) -> None:
    tables = side_by_side.tables([scored_rows.read(run) for run in runs])
    assert [table.group for table in tables] == ["total", "semantic change", "no change"]
    assert [row.name for row in tables[0].rows] == ["bad", "<b>good"]
    assert {row.name for row in tables[0].best.values()} == {"<b>good"}
    assert tables[0].rows[0].pairs["total"] == 8


def test_a_published_system_of_the_same_name_is_not_the_best(tmp_path: Path) -> None:
    """Keeps away: a paper whose table has two best figures, one of them another system's."""
    ours = scored_rows.Row("SCORER+CBR", {"total": {"CIDEr": 999.0}})
    tables = side_by_side.tables([ours, *published_rows.of_dataset("clevr")])
    (total,) = [table for table in tables if table.group == "total"]
    assert sum(row.name == ours.name for row in total.rows) == 2
    assert latex.render([total], []).count(r"\textbf{") == len(total.measures)
    comparison_page.write(str(tmp_path / "page.html"), "title", [total], [], [])
    page_text = (tmp_path / "page.html").read_text()
    assert page_text.count('class="number best"') == len(total.measures)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, no_color=True, width=200)
    comparison_page.show(console, [total], [], [])
    assert "\x1b[1m999.0" in screen.getvalue()
    assert "126.8" in screen.getvalue()
    assert not re.search(r"\x1b\[[12;]*1m126\.8", screen.getvalue())


def test_the_evaluation_of_a_captioner_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compare NAME` reads what `evaluate NAME` wrote, in the current folder."""
    (tmp_path / "assets/named").mkdir(parents=True)
    (tmp_path / "assets/named/model.safetensors").touch()
    monkeypatch.setattr("cc_train.runs.run_folder.ASSETS", tmp_path / "assets")
    monkeypatch.chdir(tmp_path)
    Path(evaluated(tmp_path / "other", GOOD), "evaluation").rename(
        run_folder.default_evaluation("named")
    )
    assert scored_rows.read("named").name == "named"


def test_captions_may_hold_what_some_take_for_a_lines_end(tmp_path: Path) -> None:
    """Keeps away: an evaluation that its own readers call damaged, however often it is made."""
    facts = [{**fact, "captions": [f"{fact['captions'][0]}\u2028\x85"]} for fact in FACTS]
    run = evaluated(tmp_path / "run", GOOD, coco.items(facts))
    assert len(scored_rows.read(run).items) == len(FACTS)
    assert "On 8 pairs" in model_card.measured(tmp_path / "run/evaluation").on
    assert (
        sum(group.pairs for group in page._groups(tmp_path / "run/evaluation/items.jsonl", {})) == 8
    )


def test_the_interval_holds_the_difference(runs: list[str]) -> None:
    rows = [scored_rows.read(run) for run in runs]
    [gain] = side_by_side.intervals(rows)
    difference = rows[1].groups["total"]["CIDEr"] - rows[0].groups["total"]["CIDEr"]
    assert gain.difference == pytest.approx(difference, abs=1e-3)
    assert gain.low < gain.difference < gain.high
    assert side_by_side.intervals(rows) == [gain]  # the same dice
    assert side_by_side.intervals([rows[0], rows[0]])[0].high == 0


def test_the_interval_is_a_bootstrap_of_pairs() -> None:
    """Against the normal approximation, over many pairs."""
    gains = np.random.default_rng(3).normal(1, 4, 900)
    rows = [
        scored_rows.Row("a", {}, items=dict.fromkeys(map(str, range(900)), 0.0)),
        scored_rows.Row("b", {}, items={str(i): float(g) for i, g in enumerate(gains)}),
    ]
    [interval] = side_by_side.intervals(rows)
    half = 1.96 * gains.std() / 30
    assert interval.low == pytest.approx(gains.mean() - half, abs=0.015)
    assert interval.high == pytest.approx(gains.mean() + half, abs=0.015)


@pytest.mark.parametrize(
    "names", [("{}.png", "{}.png_n"), ("clevr-test-{}-change", "clevr-test-{}-no_change")]
)
def test_the_pairs_of_a_scene_are_drawn_together(names: tuple[str, str]) -> None:
    """Against the normal approximation over scenes, of which two pairs have the same gain.

    Keeps away: intervals that are too narrow by a factor of √2, as of so many independent pairs.
    """
    gains = np.random.default_rng(3).normal(1, 4, 400)
    rows = [
        scored_rows.Row(
            run,
            {},
            items={name.format(i): part * float(g) for i, g in enumerate(gains) for name in names},
        )
        for run, part in (("a", 0), ("b", 1))
    ]
    [interval] = side_by_side.intervals(rows)
    half = 1.96 * gains.std() / 20
    assert interval.difference == pytest.approx(gains.mean())
    assert interval.low == pytest.approx(gains.mean() - half, abs=0.03)
    assert interval.high == pytest.approx(gains.mean() + half, abs=0.03)


def test_a_scene_with_more_pairs_counts_for_more() -> None:
    """Keeps away: a mean over scenes in place of the mean over pairs that is printed."""
    names = ["1.png", "1.png_n", "2.png"]
    for score in (0.0, 3.0):
        low, high = bootstrap.interval(names, [score, score, score], np.random.default_rng(0))
        assert (low, high) == (score, score)
    drawn = bootstrap._means(
        np.array([[3.0, 5.0, 10.0]]), bootstrap._numbers(names), np.array([[0, 0], [0, 1], [1, 1]])
    )
    assert drawn.tolist() == [[4.0], [6.0], [10.0]]


def test_other_pairs_are_said(runs: list[str], tmp_path: Path) -> None:
    fewer = evaluated(tmp_path / "fewer", {i.id: GOOD[i.id] for i in ITEMS[:5]}, ITEMS[:5])
    rows = [scored_rows.read(path) for path in (runs[0], fewer)]
    assert side_by_side.intervals(rows) == []
    notes = side_by_side.notes(rows)
    assert notes[0] == "total: not over the same number of pairs (bad 8, fewer 5)"
    assert "not over the same pairs as bad: fewer" in notes


def test_damaged_items_are_named(runs: list[str]) -> None:
    (Path(runs[0]) / "evaluation/items.jsonl").write_text('{"id": 3')
    with pytest.raises(UserError, match=r"items\.jsonl: damaged"):
        scored_rows.read(runs[0])


def test_published_rows(runs: list[str]) -> None:
    rows = [*(scored_rows.read(run) for run in runs), *published_rows.of_dataset("clevr")]
    total = side_by_side.tables(rows)[0]
    by_name = {row.name: row for row in total.rows}
    assert by_name["ProCap"].groups["total"] == {"CIDEr": 135.6}
    assert by_name["ProCap"].sources == {"total": "procap, table 1"}
    assert by_name["FINER-MLLM"].marks["total"] == ("LLM",)
    assert "not reached" in by_name["SSGPA"].marks["total"]
    notes = side_by_side.notes(rows)
    assert "LLM: a large language model writes the captions" in notes
    assert not [note for note in notes if note.startswith("multi:")]  # no such row is shown
    with pytest.raises(UserError, match="Known: clevr, clevr_dc, edit, levir, spot, spot_multi"):
        published_rows.of_dataset("coco")


def test_marks_and_details_are_shown(runs: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = compare(runs[0], "--dataset", "spot", "--mixed", "--out", page).stdout
    finer = next(line for line in shown.splitlines() if "FINER-MLLM" in line)
    assert "LLM, disputed" in finer
    assert "note: disputed: papers print different scores" in shown
    text = page.read_text()
    assert "LLM, disputed" in text
    assert "ProCap&#39;s and the note on OmniDiff 61.8" in text
    listed = json.loads(compare(runs[0], "--dataset", "spot", "--mixed", "--json").stdout)[
        "groups"
    ]["total"]
    [details] = [row for row in listed if row["system"] == "FINER-MLLM"]
    assert (details["llm"], details["CIDEr kind"], details["aliases"]) == (
        True,
        "official",
        ["FINER"],
    )
    assert details["elsewhere"][0] == {"source": "procap", "table": "1", "scores": {"CIDEr": 61.8}}


def compare(*options: object) -> Done:
    return cc_train("compare", *options)


def test_mixed_scores_have_a_note_beside_published_rows(tmp_path: Path) -> None:
    """Keeps away: another data set's scores among published rows without a word."""
    zoo = ROOT / "zoo/ddla-spot"  # scored by a protocol of Spot-the-Diff
    done = compare(zoo, "--dataset", "clevr")
    assert done.returncode == 2
    done = compare(zoo, "--dataset", "clevr", "--mixed")
    assert done.returncode == 0, done.stderr
    assert "by the protocol spot-single, not by one of clevr: the pairs and" in done.stdout
    shown = compare(ROOT / "zoo/captioner-mini", "--dataset", "clevr", "--mixed").stdout
    assert "whether it is scored on the pairs and references of the published rows" in shown


def test_the_command(runs: list[str], tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    done = compare(*runs, "--dataset", "spot", "--mixed", "--out", page)
    assert done.returncode == 0, done.stderr
    assert "<b>good" in done.stdout
    assert "DAVIR" in done.stdout
    assert "<b>good over bad: CIDEr +" in done.stdout
    text = page.read_text()
    assert "&lt;b&gt;good" in text
    assert "<b>" not in text
    as_json = json.loads(compare(*runs, "--json").stdout)
    assert [row["system"] for row in as_json["groups"]["no change"]] == ["bad", "<b>good"]


def test_runs_of_one_name_are_told_apart(runs: list[str], tmp_path: Path) -> None:
    """By the end of their paths, never the whole: a page is for others to read."""
    paths = [runs[0], evaluated(tmp_path / "x" / "bad", BAD), evaluated(tmp_path / "y/bad", BAD)]
    page = tmp_path / "compare.html"
    done = compare(*paths, runs[1], runs[1], "--json", "--out", page)
    names = [row["system"] for row in json.loads(done.stdout)["groups"]["total"]]
    assert set(names) == {
        f"{tmp_path.name}/bad", "x/bad", "y/bad", "<b>good", "<b>good (2)",
    }  # fmt: skip
    assert str(tmp_path) not in page.read_text()


def test_the_folder_one_stands_in_has_a_name(
    runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs[0])
    assert scored_rows.read(".").name == "bad"


@pytest.mark.parametrize("text", ["{", "{}", '{"groups": {"total": 3}, "conventions": ""}'])
def test_what_is_no_evaluation(tmp_path: Path, text: str) -> None:
    (tmp_path / "scores.json").write_text(text)
    for path in (tmp_path, tmp_path / "scores.json"):
        done = compare(path)
        assert done.returncode == 2
        assert "no scores of cc-train evaluate" in done.stderr
    none = compare(tmp_path / "nowhere")
    assert (none.returncode, "Evaluate it first" in none.stderr) == (2, True)
