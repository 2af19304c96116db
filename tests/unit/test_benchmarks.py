"""The programs of benchmarks/: they start, and no result counts for what it was not made of."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from cc_prep.media import images
from cc_prep.models import vqgan
from tests.conftest import ROOT

# All in one process, since most of a start is torch's import. What one of them does to the path
# does not help the next.
IMPORT_ALL = """
import importlib, sys
path = sys.path = ["benchmarks", *sys.path[1:]]
for name in sys.argv[1:]:
    sys.path = [*path]
    importlib.import_module(name)
    for module in [m for m in sys.modules if m.split(".")[0] == "tests"]:
        del sys.modules[module]
"""


@pytest.fixture(scope="module")
def ablation() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("ablation")


@pytest.fixture(scope="module")
def comparison(ablation: ModuleType) -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("lib.comparison")


def test_programs_start_by_their_path() -> None:
    """Keeps away: a program that imports what lies beside benchmarks/, and so only starts where
    PYTHONPATH names the checkout."""
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py"))
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module


def test_both_ways_of_scorer_take_the_same_step(program: Callable[[str], Any]) -> None:
    """Keeps away: a program that stopped at `KeyError: 'scene'`, since batches had changed."""
    scorer = program("bench_scorer")
    assert np.allclose(scorer.ours(2, 64), scorer.public(2, 64), rtol=1e-3)


def test_costs_of_a_pair_are_measured(program: Callable[[str], Any], tmp_path: Path) -> None:
    """Keeps away: a method that no interpolator has any more."""
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        for number in range(2):
            cv2.imwrite(f"{tmp_path}/{side}/{number}.png", np.full((64, 64, 3), 90, np.uint8))
    costs = program("lib.cluster").measured(tmp_path, 1)
    assert min(dataclasses.astuple(costs)) > 0


def test_a_trial_has_folders_of_its_own(ablation: ModuleType, tmp_path: Path) -> None:
    """Keeps away: the run of a trial of 6 steps, which the whole training goes on with, or whose
    figures are those of the whole training."""

    def folders(share: int, steps: int | None) -> tuple[Path, Path]:
        lab = ablation.Ablation(tmp_path, share, steps, tmp_path / "results")
        return lab.pairs("efficientnet-lite0"), lab.runs

    assert folders(100, None) == (tmp_path / "pairs", tmp_path / "runs")
    assert folders(100, 6) == (tmp_path / "pairs", tmp_path / "runs-of-6-steps")
    few, runs = folders(2, 6)
    assert few == tmp_path / "share-2/pairs"
    assert runs == tmp_path / "share-2/runs-of-6-steps"


@pytest.mark.parametrize("option", ["--share", "--steps"])
def test_a_trial_leaves_page_and_results_as_they_are(
    ablation: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Keeps away: the figures of a trial in the place of the published ones."""
    rows = ablation.TABLES["stages"]
    monkeypatch.setattr(ablation.Ablation, "without_result", lambda *_: [])
    entry = dict.fromkeys(("exact", "told apart", "type", "color", "shape", "CIDEr"), 50.0)
    known = {row.training: {0: entry} for table in ablation.TABLES.values() for row in table}
    read_from = set()
    monkeypatch.setattr(
        ablation.Ablation, "known", lambda lab, _: read_from.add(lab.results) or known
    )
    page = tmp_path / "page.md"
    page.write_text("<!-- ablation stages -->\npublished\n<!-- end -->\n")
    arguments = ["--out", tmp_path, "--table", "stages", "--docs", page, option, 3]
    done = CliRunner().invoke(ablation.main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert rows[0].name in done.output
    assert "stays as it is" in done.output
    assert "published" in page.read_text()
    assert read_from == {tmp_path / "trial.jsonl"}


def test_results_of_todays_variants_count(comparison: ModuleType, tmp_path: Path) -> None:
    """Keeps away: a variant that was renamed or changed, in the table as if it were a captioner
    beside the others."""
    variants = {"same": ("k=1",), "changed": ("k=2",)}
    file = tmp_path / "results.jsonl"
    plan = comparison.Plan("pair", 2, variants, ("exact",), str(file), "mark")
    lab = comparison.Comparison(tmp_path, file, plan)
    lines = [
        {"training": "same", "settings": ["k=1"]},
        {"training": "changed", "settings": ["k=1"]},
        {"training": "renamed", "settings": ["k=1"]},
        {"training": "captioner", "beside": "run", "weights": ""},
        {"training": "former", "beside": "captioner-mini", "weights": "of another version"},
        {"training": "same", "settings": ["k=1"], "conditions": "others", "seed": 1},
    ]
    these = {"conditions": lab.conditions("same"), "seed": 0}
    file.write_text("".join(json.dumps({**these, **line}) + "\n" for line in lines))
    known = lab.known(variants)
    assert {name: [*seeds] for name, seeds in known.items()} == {"same": [0], "changed": []}
    assert [*lab.beside()] == ["captioner"]
    assert lab.is_known("captioner", "run")
    assert not lab.is_known("captioner", "another")


@pytest.mark.parametrize("system", ["scorer", "chain", "mllm"])
def test_stored_results_are_those_of_todays_plans(
    comparison: ModuleType, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a change of the programs after which no published result counts, and all are to
    be trained again. Those that start from captioner-mini started from a former one, as
    docs/results.md says: all from the same.
    """
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    plan = importlib.import_module(f"{system}_comparison").PLAN
    lab = comparison.Comparison(Path("out"), ROOT / plan.results, plan)
    if plan.start is not None:
        lines = map(json.loads, (ROOT / plan.results).read_text().splitlines())
        [lab._conditions] = {line["conditions"] for line in lines}
    assert {name: [*seeds] for name, seeds in lab.known(plan.variants).items()} == {
        name: [0, 1, 2] for name in plan.variants
    }


def test_stored_results_are_those_of_todays_ablation(ablation: ModuleType, tmp_path: Path) -> None:
    """Keeps away: the same of the ablation, whose trainings take days."""
    file = ROOT / ablation.RESULTS
    lab = ablation.Ablation(tmp_path, 100, None, file)
    known = lab.known(row for table in ablation.TABLES.values() for row in table)
    lines = file.read_text().splitlines()
    assert sum(map(len, known.values())) == len(lines)


def test_stored_results_are_those_of_todays_table_of_few_labels(
    ablation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the same of the table of few labels, and one training that is two rows."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    imagining = importlib.import_module("imagining")
    lab = imagining.Imagining(Path("out"), None, ROOT / imagining.RESULTS)
    rows = [imagining.Row(arm, count) for count in imagining.LABELS for arm in imagining.ARMS]
    known = lab.known(rows)
    assert len(known) == len(rows)
    assert sum(map(len, known.values())) == len(
        importlib.import_module("lib.results").stored(lab.results)
    )


def _scores(exact: float) -> dict[str, object]:
    facts = {"shares": {"exact": {"share": exact}}, "told apart": {"share": 0.5}}
    return {
        "facts": facts,
        "groups": {"total": {"CIDEr": 100.0}},
        "signature": "refs:x",
    }


def test_figures_of_an_evaluation_that_has_changed_are_read_again(
    comparison: ModuleType, tmp_path: Path
) -> None:
    """Keeps away: the figures of a former captioner in a table whose command names today's: a
    stored line counted for ever, as long as its path was the same."""
    evaluation, results = tmp_path / "evaluation", tmp_path / "results.jsonl"
    own = tmp_path / "evaluations/own"
    plan = comparison.Plan("pair", 2, {"one": ()}, ("exact",), str(results), "mark")
    lab = comparison.Comparison(tmp_path, results, plan)
    for folder in (evaluation, own):
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(json.dumps(_scores(0.5)))
    for exact in (0.5, 0.75):
        (evaluation / "scores.json").write_text(json.dumps(_scores(exact)))
        for _ in range(2):  # the second time nothing is added
            lab.add_scored([("scored", str(evaluation))])
        assert lab.beside()["scored"][0]["exact"] == 100 * exact
    assert len(results.read_text().splitlines()) == 2
    (evaluation / "scores.json").unlink()
    assert [*lab.beside()] == ["scored"]


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/results").glob("*.jsonl")))
def test_stored_results_of_zoo_rows_are_those_of_the_zoo(
    comparison: ModuleType, file: Path
) -> None:
    """Keeps away: a published line with figures of a former captioner, which the command that a
    page names writes over the right ones."""
    trainings = sys.modules["lib.trainings"]
    for line in map(json.loads, file.read_text().splitlines()):
        if str(line.get("beside", "")).startswith("zoo/"):
            figures = trainings.figures(trainings.scores_of(ROOT / line["beside"]))
            assert {name: line.get(name) for name in figures} == figures, line["beside"]


def test_the_page_has_the_table_that_the_scorer_comparison_prints(
    comparison: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a row of the page that was changed by hand, and is lost when the program that the
    page names writes its table again."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(ROOT)
    plan = importlib.import_module("scorer_comparison").PLAN
    table = comparison.Comparison(Path("out"), ROOT / plan.results, plan).table()
    page = (ROOT / "benchmarks/results/notes/scorer.md").read_text()
    assert f"<!-- {plan.mark} -->\n{table}\n<!-- end -->" in page


def test_other_scenes_are_other_conditions(comparison: ModuleType, tmp_path: Path) -> None:
    """Keeps away: results of other shards among the published ones; the language model's lines did
    not say what they were trained on."""
    plan = comparison.Plan("mllm", 2, {"as it is": ()}, ("exact",), "file", "mark")
    scenes = [comparison.Scenes(), comparison.Scenes(seed=9), comparison.Scenes(fresh=None),
              comparison.Scenes(findings=("changes",))]  # fmt: skip
    plans = [dataclasses.replace(plan, scenes=one) for one in scenes]
    labs = [comparison.Comparison(tmp_path, tmp_path / "file", plan) for plan in plans]
    assert len({lab.conditions("as it is") for lab in labs}) == len(scenes)


def test_a_comparison_trains_what_has_no_result(
    comparison: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a training that is done again, or one that is evaluated on what it was trained
    on; a trial in the published table."""
    trainings = sys.modules["lib.trainings"]
    commands: list[list[str]] = []
    scores = {
        "facts": {"shares": {"exact": {"share": 0.5}}, "told apart": {"share": 0.5}},
        "groups": {"total": {"CIDEr": 100.0}},
    }

    def run(program: str, *arguments: object) -> None:
        commands.append([program, *map(str, arguments)])

    for module in (comparison, trainings):
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(trainings, "scores_of", lambda _: scores)
    monkeypatch.setattr(trainings, "validations", lambda _: [{"CIDEr": 90.0}, {"CIDEr": 80.0}])
    variants = {"one": ("k=1",), "other": ()}
    published, page = tmp_path / "published.jsonl", tmp_path / "page.md"
    page.write_text("<!-- mark -->\npublished\n<!-- end -->\n")
    figures = ("exact", "validation CIDEr")
    main = comparison.command(comparison.Plan("pair", 8, variants, figures, str(published), "mark"))
    arguments = ["--out", str(tmp_path), "--docs", str(page), "--seeds", "2"]
    done = CliRunner().invoke(main, [*arguments, "--steps", "4"], catch_exceptions=False)
    assert "| one | 2 | 50.0 ± 0.0 | 90.0 ± 0.0 |" in done.output
    assert "published" in page.read_text()
    assert not published.exists()
    [of_training, *_] = [command for command in commands if command[1] == "pair"]
    assert {"--steps", "4", "k=1", "loop.seed=0", "loop.validate_every=2"} <= {*of_training}
    evaluated = {command[-1] for command in commands if command[1] == "evaluate"}
    assert evaluated == {f"{tmp_path}/fresh-pairs/shards/*.tar"}
    commands.clear()
    CliRunner().invoke(main, [*arguments, "--steps", "4"], catch_exceptions=False)
    assert commands == []
    CliRunner().invoke(main, [*arguments, "--beside", "b=captioner-mini"], catch_exceptions=False)
    assert len([command for command in commands if command[1] == "pair"]) == 4
    assert "| b | 1 | 50.0 |  |" in page.read_text()
    done = CliRunner().invoke(main, [*arguments, "--beside", "one=run"])
    assert done.exit_code == 2, "a captioner of a variant's name would not be in the table"


def test_a_trial_of_one_step_can_be_trained(
    comparison: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: a training that is refused only when all scenes are rendered, since it validates
    every 0 steps; and a trial of 0 steps that trains as long as the comparison does."""
    commands: list[list[str]] = []
    for module in (comparison, sys.modules["lib.trainings"]):
        monkeypatch.setattr(module, "run", lambda *parts: commands.append([*map(str, parts)]))
    plan = comparison.Plan("pair", 1, {"one": ()}, (), str(tmp_path / "results"), "mark")
    comparison.Comparison(tmp_path, tmp_path / "results", plan).train("one", 0)
    assert "loop.validate_every=1" in next(each for each in commands if each[1] == "pair")
    done = CliRunner().invoke(comparison.command(plan), ["--out", str(tmp_path), "--steps", "0"])
    assert done.exit_code == 2, done.output


def test_another_start_or_backbone_is_other_conditions(
    comparison: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: results that started from an earlier captioner-mini among those of today's."""

    def conditions(**changes: str) -> str:
        plan = comparison.Plan("chain", 2, {"as it is": ()}, ("exact",), "file", "mark", **changes)
        lab = comparison.Comparison(tmp_path, tmp_path / "file", plan)
        return str(lab.conditions("as it is"))

    untrained, today = conditions(), conditions(start="captioner-mini")
    monkeypatch.setattr(comparison, "_shipped_weights", lambda _: "0")
    others = {conditions(start="captioner-mini"), conditions(backbone="efficientnet-lite0")}
    assert len({untrained, today, *others}) == 4


def test_the_keyframe_rule_is_compared_with_chance(tmp_path: Path) -> None:
    """Keeps away: a table or a picture whose shares are not those of the distances."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        rule = importlib.import_module("keyframe_rule")
    chosen = np.array([[0.0], [1.0], [1.0], [2.0]])
    drawn = np.array([[3.0, 2, 1, 0, 1, 2, 3]] * 4)
    figures = {"the rule": rule.summary(chosen), rule.CHANCE: rule.summary(drawn)}
    lines = rule.table_of(figures).splitlines()
    assert lines[2].startswith("| the rule | 1.00 (0.")
    assert lines[2].endswith("| 75 % |")
    assert lines[3] == f"| {rule.CHANCE} | 1.71 | 43 % |"
    rule.draw({"the rule": chosen, rule.CHANCE: drawn}, tmp_path / "picture.png")
    assert images.read(str(tmp_path / "picture.png")).shape[2] == 3


def test_stage_2_is_measured_against_what_computes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps away: a way of the benchmark that does not run any more, or computes something else."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench = importlib.import_module("bench_stage2")
    small = vqgan.Config(channels=32, multipliers=(1,) * 5, blocks=1, attention=())
    monkeypatch.setattr(bench, "codec", cache(lambda: vqgan.VQGAN(small).eval()))
    monkeypatch.setattr(bench, "Config", partial(bench.Config, width=64, layers=2))
    monkeypatch.setattr(bench, "BATCH", 1)
    monkeypatch.setattr(bench, "THREADS", torch.get_num_threads())
    monkeypatch.setattr(bench, "torchs_products", lambda: None)
    ours = bench.pixels()
    np.testing.assert_allclose(bench.reference(), ours, atol=1e-4)  # which changes the network
