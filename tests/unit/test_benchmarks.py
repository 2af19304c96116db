"""The programs of benchmarks/: they start, and no result counts for what it was not made of."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

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
def trainings(ablation: ModuleType) -> ModuleType:
    return sys.modules["lib.trainings"]


def test_programs_start_by_their_path() -> None:
    """Keeps away: a program that imports what lies beside benchmarks/, and so only starts where
    PYTHONPATH names the checkout."""
    names = sorted(place.stem for place in (ROOT / "benchmarks").glob("*.py"))
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_trial_has_folders_of_its_own(ablation: ModuleType, tmp_path: Path) -> None:
    """Keeps away: the run of a trial of 6 steps, which the whole training goes on with, or whose
    figures are those of the whole training."""

    def places(share: int, steps: int | None) -> tuple[Path, Path]:
        lab = ablation.Lab(tmp_path, share, steps, tmp_path / "results")
        return lab.pairs("efficientnet-lite0"), lab.runs

    assert places(100, None) == (tmp_path / "pairs", tmp_path / "runs")
    assert places(100, 6) == (tmp_path / "pairs", tmp_path / "runs-of-6-steps")
    few, runs = places(2, 6)
    assert few == tmp_path / "share-2/pairs"
    assert runs == tmp_path / "share-2/runs-of-6-steps"


@pytest.mark.parametrize("option", ["--share", "--steps"])
def test_a_trial_leaves_page_and_results_as_they_are(
    ablation: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """Keeps away: the figures of a trial in the place of the published ones."""
    rows = ablation.TABLES["stages"]
    monkeypatch.setattr(ablation.Lab, "without_result", lambda *_: [])
    entry = dict.fromkeys(("exact", "told apart", "type", "color", "shape", "CIDEr"), 50.0)
    known = {row.training: {0: entry} for table in ablation.TABLES.values() for row in table}
    read_from = set()
    monkeypatch.setattr(ablation.Lab, "known", lambda lab, _: read_from.add(lab.results) or known)
    page = tmp_path / "page.md"
    page.write_text("<!-- ablation stages -->\npublished\n<!-- end -->\n")
    arguments = ["--out", tmp_path, "--table", "stages", "--docs", page, option, 3]
    done = CliRunner().invoke(ablation.main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    assert rows[0].name in done.output
    assert "stays as it is" in done.output
    assert "published" in page.read_text()
    assert read_from == {tmp_path / "trial.jsonl"}


def test_results_of_todays_variants_count(trainings: ModuleType, tmp_path: Path) -> None:
    """Keeps away: a variant that was renamed or changed, in the table as if it were a captioner
    beside the others."""
    lines = [
        {"training": "same", "settings": ["k=1"]},
        {"training": "changed", "settings": ["k=1"]},
        {"training": "renamed", "settings": ["k=1"]},
        {"training": "captioner", "beside": "captioner-mini"},
        {"training": "same", "settings": ["k=1"], "conditions": "others"},
    ]
    file = tmp_path / "results.jsonl"
    file.write_text(
        "".join(json.dumps({"conditions": "these", "seed": 0, **line}) + "\n" for line in lines)
    )
    variants = {"same": ("k=1",), "changed": ("k=2",)}
    assert [*trainings.read(file, "these", variants)] == ["same", "captioner"]
    assert len(trainings.read(file, "these")) == 4
