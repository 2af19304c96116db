"""No file that is made for others to read shows a path of the machine it was made on."""

from __future__ import annotations

import json
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError
from unittest.mock import Mock

import pycocoevalcap
import pytest
from pycocoevalcap.spice.spice import Spice

from cc_train.evaluation import evaluation
from cc_train.evaluation.captions import coco, spice
from cc_train.evaluation.comparing import scored_rows, side_by_side
from cc_train.report import comparison as comparison_page
from cc_train.report import page

PACKAGE = Path(pycocoevalcap.__path__[0])
ITEMS = coco.items(
    [
        {"key": name, "kind": "change", "change_type": "add", "captions": [f"a {name} cube came"]}
        for name in ("red", "blue", "dim")
    ]
)
CAPTIONS = {item.id: item.references[0] for item in ITEMS}


def hidden(folder: Path) -> list[str]:
    paths = {folder, folder.resolve(), Path.home(), Path(sys.prefix), Path.cwd()}
    return [*map(str, paths), sysconfig.get_paths()["purelib"], "site-packages"]


def page_texts(folder: Path) -> dict[str, str]:
    """An evaluated run with its page and a comparison's, as texts by file name."""
    run = folder / "run"
    swapped = evaluation.swap_check(ITEMS, CAPTIONS, CAPTIONS)
    scored = replace(evaluation.evaluate(ITEMS, CAPTIONS), swapped=swapped)
    evaluation.write(run / "evaluation", scored, ITEMS, CAPTIONS)
    settings = {
        "kind": "stage2",
        "shards": [f"{folder}/my shards/train-*.tar", "s3://bucket/shards/val-*.tar"],
        "encoder": {"weights": str(Path.home() / "weights/ViT-B-32.pt")},
        "words": ["a", "cube"],
    }
    (run / "settings.json").write_text(json.dumps(settings))
    page.write(str(run), None)
    rows = [scored_rows.read(str(run))]
    comparison_page.write(
        str(folder / "compare.html"), "run", side_by_side.tables(rows), [], side_by_side.notes(rows)
    )
    files = [run / "report.html", folder / "compare.html", *(run / "evaluation").iterdir()]
    return {file.name: file.read_text() for file in files}


def check(texts: dict[str, str], folder: Path) -> None:
    assert {"report.html", "compare.html", "scores.json", "table.md", "items.jsonl"} <= set(texts)
    for name, text in texts.items():
        for path in hidden(folder):
            assert path not in text, f"{name} shows {path}"


def test_where_spice_has_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spice, "MODELS", "no-such-models.jar")
    texts = page_texts(tmp_path)
    check(texts, tmp_path)
    for name in ("scores.json", "table.md", "report.html"):
        assert "pycocoevalcap.spice.get_stanford_models" in texts[name]  # still of use
    assert "train-*.tar" in texts["report.html"]
    assert "s3://bucket/shards/val-*.tar" in texts["report.html"]
    assert "ViT-B-32.pt" in texts["report.html"]


def test_where_java_speaks_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: the whole command, which SPICE's wrapper tells where Java fails."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho "cannot open $0 in $(pwd)" >&2\nexit 3\n')
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{java.parent}:/usr/bin:/bin")
    monkeypatch.setattr(spice, "MODELS", next((PACKAGE / "spice/lib").iterdir()).name)
    command = ["java", "-jar", str(PACKAGE / "spice/spice-1.0.jar"), str(tmp_path / "in.json")]
    monkeypatch.setattr(Spice, "__init__", lambda self: None)  # it would download the models
    monkeypatch.setattr(Spice, "compute_score", Mock(side_effect=CalledProcessError(3, command)))
    texts = page_texts(tmp_path)
    check(texts, tmp_path)
    left_out = json.loads(texts["scores.json"])["left_out"]
    assert left_out == {"SPICE": "its Java process ended with exit code 3"}
