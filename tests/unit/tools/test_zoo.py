"""The zoo: rows with their files, scores that are computed again, and the page of ours."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cc_prep.records import Facts
from cc_train.evaluation import evaluation, published
from cc_train.evaluation.captions import coco, metrics
from tests import commands
from tests.commands import Done, outside_make
from tests.conftest import ROOT
from tools.zoo import page as zoo_page

ITEMS = coco.items(
    [
        {"key": f"k{i}", "kind": "change", "captions": [f"the {word} cube moved", f"a {word} one"]}
        for i, word in enumerate(("red", "blue", "tiny"))
    ]
)
CAPTIONS = {item.id: item.references[0] for item in ITEMS} | {"k0": "a dog"}


MODEL = ROOT / "cc_train/assets/captioner-mini/model.safetensors"


def evaluated(folder: Path, items: list[coco.Item] = ITEMS, step: int | None = None) -> Path:
    """An evaluation. step: of the run of MODEL's weights; None for captions in a file."""
    scores = evaluation.evaluate(items, CAPTIONS, metrics.PLAIN)
    if step is not None:
        weights = hashlib.sha256(MODEL.read_bytes()).hexdigest()
        scores = replace(scores, step=step, beams=1, weights=weights)
    evaluation.write(folder, scores, items, CAPTIONS)
    return folder


def add(zoo: Path, path: Path, *more: object) -> Done:
    about = ("--system", "Theirs", "--dataset", "spot", "--command", "make it")
    return commands.zoo("add", path, "--zoo", zoo, "--name", "theirs", *about, *more)


def test_captions_of_others_are_rescored(tmp_path: Path) -> None:
    zoo, page = tmp_path / "zoo", tmp_path / "zoo.md"
    assert add(zoo, evaluated(tmp_path / "e"), "--with-references").returncode == 0
    assert commands.zoo("page", "--zoo", zoo, "--out", page).returncode == 0
    text = page.read_text()
    [row] = [line for line in text.splitlines() if line.startswith("| Theirs")]
    assert "| re-scored by us ✓ | 3 |" in row
    assert "[predictions](zoo/theirs/predictions.json)" in row
    assert "- **Theirs**: `make it`." in text
    assert "| SCORER+CBR | reported |" in text
    for dataset in zoo_page.MANIFESTS:
        assert f"make zoo-row DATASET={dataset} SYSTEM=scorer" in text
        assert (ROOT / f"manifests/{dataset}.yaml").exists()


def test_rows_of_every_published_data_set_are_on_the_page(tmp_path: Path) -> None:
    """Keeps away: a row that is added and never shown, since its data set has no manifest."""
    zoo, scored = tmp_path / "zoo", evaluated(tmp_path / "e")
    for dataset in published.read().datasets:
        assert add(zoo, scored, "--name", dataset, "--dataset", dataset).returncode == 0
    text = zoo_page.render(zoo, tmp_path)
    assert text.count("| Theirs | re-scored by us") == len(published.read().datasets)
    multi = text.partition("## Spot-the-Diff, multi-change protocol")[2].partition("\n## ")[0]
    assert "| Theirs | re-scored by us" in multi
    assert "make zoo-row" not in multi


@pytest.mark.parametrize("change", ["caption", "score", "references"])
def test_a_row_whose_figures_are_not_its_captions(tmp_path: Path, change: str) -> None:
    """Keeps away: a figure on the page that its files do not give."""
    zoo = tmp_path / "zoo"
    add(zoo, evaluated(tmp_path / "e"), "--with-references")
    if change == "references":
        [file] = (zoo / "references").iterdir()
        other = replace(ITEMS[0], references=("a cat",))
        coco.write_references(file, [other, *ITEMS[1:]])
    elif change == "caption":
        rows = json.loads((zoo / "theirs/predictions.json").read_text())
        rows[0]["caption"] = "the red cube moved"
        (zoo / "theirs/predictions.json").write_text(json.dumps(rows))
    else:
        scores = json.loads((zoo / "theirs/scores.json").read_text())
        scores["groups"]["total"]["CIDEr"] += 0.01
        (zoo / "theirs/scores.json").write_text(json.dumps(scores))
    done = commands.zoo("page", "--zoo", zoo, "--out", tmp_path / "zoo.md")
    assert done.returncode == 2
    assert "its captions do not have its scores" in done.stderr
    assert not (tmp_path / "zoo.md").exists()


def test_a_training_brings_its_settings_and_digest(tmp_path: Path) -> None:
    zoo = tmp_path / "zoo"
    scored = evaluated(tmp_path / "e", step=0)
    done = add(zoo, scored, "--run", "captioner-mini", "--weights", "here")
    assert done.returncode == 0, done.stderr
    row = yaml.safe_load((zoo / "theirs/row.yaml").read_text())
    assert (row["kind"], row["weights"]["place"]) == ("trained", "here")
    assert row["weights"]["bytes"] == MODEL.stat().st_size
    assert json.loads((zoo / "theirs/settings.json").read_text())["system"] == "pair"
    text = zoo_page.render(zoo, tmp_path)
    assert "| trained by us | 3 |" in text  # no ✓: the references are not kept
    assert f"Weights at here: {MODEL.stat().st_size:,} bytes" in text


@pytest.mark.parametrize(
    ("step", "reason"), [(None, "scores of no known step"), (500, "scores of step 500")]
)
def test_scores_of_other_weights_are_refused(tmp_path: Path, step: int | None, reason: str) -> None:
    """Keeps away: a row whose figures are not those of the weights that it names."""
    scored = evaluated(tmp_path / "e", step=step)
    done = add(tmp_path / "zoo", scored, "--run", "captioner-mini")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{reason}, and the best checkpoint of " in done.stderr
    assert "is of step 0. Give --run what was evaluated, or evaluate the run again" in done.stderr
    assert not (tmp_path / "zoo").exists()


def test_scores_of_another_exported_captioner_are_refused(tmp_path: Path) -> None:
    """Keeps away: a row of a captioner with the scores of another; all exports are of step 0."""
    scored = evaluated(tmp_path / "e", step=0)
    scores = json.loads((scored / "scores.json").read_text())
    path = scored / "scores.json"
    path.write_text(json.dumps({**scores, "weights": "0" * 64}))
    done = add(tmp_path / "zoo", scored, "--run", "captioner-mini")
    assert done.returncode == 2
    assert "scores of other weights of step 0, and the best checkpoint of " in done.stderr
    path.write_text(json.dumps(scores))
    assert add(tmp_path / "zoo", scored, "--run", "captioner-mini").returncode == 0


def test_weights_of_others_are_not_trained_by_us(tmp_path: Path) -> None:
    """Keeps away: "trained by us" of an imported checkpoint, and settings that are none."""
    run, zoo = tmp_path / "run", tmp_path / "zoo"
    run.mkdir()
    shutil.copy(MODEL, run)
    (run / "settings.json").write_text("1")
    scored = evaluated(tmp_path / "e", step=0)
    assert "settings.json: no settings. Give --run" in add(zoo, scored, "--run", run).stderr
    imported = {"file": "best.pt", "sha256": "ab" * 32}
    (run / "settings.json").write_text(json.dumps({"imported": imported}))
    done = add(zoo, scored, "--run", run)
    assert done.returncode == 0, done.stderr
    text = zoo_page.render(zoo, tmp_path)
    assert "| Theirs | evaluated by us | 3 |" in text
    assert "- **evaluated by us**: others trained it." in text


def test_scores_of_weights_before_they_were_rounded_are_refused(tmp_path: Path) -> None:
    """Keeps away: a digest of weights beside figures that they never gave."""
    scored = evaluated(tmp_path / "e", step=0)
    scores = json.loads((scored / "scores.json").read_text())
    (scored / "scores.json").write_text(json.dumps({**scores, "scored_weights": "0" * 64}))
    done = add(tmp_path / "zoo", scored, "--run", "captioner-mini")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "scores of the weights before they were rounded to float16. Evaluate " in done.stderr
    assert not (tmp_path / "zoo").exists()


@pytest.mark.parametrize("change", ["one less", "one more", "another caption"])
def test_only_the_captions_that_were_scored_are_stored(tmp_path: Path, change: str) -> None:
    """Keeps away: a row whose captions somebody changed after they were scored."""
    scored = evaluated(tmp_path / "e")
    rows = json.loads((scored / "predictions.json").read_text())
    if change == "one less":
        rows.pop()
    elif change == "one more":
        rows.append({"image_id": "k9", "caption": "a dog"})
    else:
        rows[1]["caption"] = "a dog"
    (scored / "predictions.json").write_text(json.dumps(rows))
    done = add(tmp_path / "zoo", scored)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.rstrip().endswith("Evaluate them again, and add the row again")
    assert not (tmp_path / "zoo").exists()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    zoo, scored = tmp_path / "zoo", evaluated(tmp_path / "e")
    assert "no such folder" in commands.zoo("page", "--zoo", zoo, "--out", "x.md").stderr
    assert "--weights without --run" in add(zoo, scored, "--weights", "here").stderr
    assert "no such file. Evaluate first" in add(zoo, tmp_path).stderr
    assert "Give one without /" in add(zoo, scored, "--name", "data/my.yaml").stderr
    assert "no dot before it" in add(zoo, scored, "--name", ".mine").stderr  # no page shows it
    assert not zoo.exists()
    assert add(zoo, scored).returncode == 0
    assert "already exists" in add(zoo, scored).stderr
    assert "no such file" in add(zoo, tmp_path, "--replace").stderr
    assert (zoo / "theirs/row.yaml").exists()  # a row that is refused takes no other's place
    assert add(zoo, scored, "--replace", "--note", "Again.").returncode == 0
    assert yaml.safe_load((zoo / "theirs/row.yaml").read_text())["note"] == "Again."
    (zoo / "theirs/row.yaml").write_text("system: a\nkind: heard\n")
    done = commands.zoo("page", "--zoo", zoo, "--out", tmp_path / "x.md")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    scores = json.loads((scored / "scores.json").read_text())
    (scored / "scores.json").write_text(json.dumps({**scores, "signature": None}))
    assert "no scores with a signature" in add(tmp_path / "other", scored).stderr


def test_a_row_of_data_of_your_own(tmp_path: Path) -> None:
    """Keeps away: a row in nested folders, since its data set is a file, which no page shows."""
    for program in ("cc-prep", "cc-train", "python"):
        log = f'printf "%s\\n" "$@" >> {tmp_path}/{program}.log'
        (tmp_path / program).write_text(f"#!/bin/sh\n{log}\n")
        (tmp_path / program).chmod(0o755)
    variables = outside_make()
    settings = ("SETUP=", f"BIN={tmp_path}", f"DATASET={tmp_path}/my.yaml", f"ROWS={tmp_path}/rows")
    subprocess.run(
        ["make", "zoo-row", *settings],
        cwd=ROOT, env=variables, check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    words = (tmp_path / "python.log").read_text().splitlines()
    add = words[words.index("add") :]
    assert add[1] == "out/my-procap/stage2/evaluation"
    assert add[add.index("--name") + 1] == "procap-my"
    assert add[add.index("--dataset") + 1] == "my"
    assert add[add.index("--command") + 1].startswith(f"make zoo-row DATASET={tmp_path}/my.yaml ")


def test_a_row_names_no_folder_of_its_machine(tmp_path: Path) -> None:
    """Keeps away: the name of a user and of a project on a page that is published."""
    zoo, scored = tmp_path / "zoo", evaluated(tmp_path / "e")
    training = f"TRAIN='--set vocabulary={tmp_path}/w.json'"
    command = f"make zoo-row DATASET={tmp_path}/secret/my.yaml {training}"
    assert add(zoo, scored, "--command", command).returncode == 0
    row = yaml.safe_load((zoo / "theirs/row.yaml").read_text())
    assert row["command"] == "make zoo-row DATASET=my.yaml TRAIN='--set vocabulary=w.json'"


def test_the_settings_of_a_row_name_files_alone(tmp_path: Path) -> None:
    """Keeps away: the same in a path that somebody gave from where they stood."""
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(MODEL, run)
    paths = {"vocabulary": "secret/words.json", "vqgan": "secret/vqgan", "cache": str(tmp_path)}
    names = {"model": {"weights": "../secret/lm", "family": "a/b"}, "backbone_weights": "s3://b/w"}
    (run / "settings.json").write_text(json.dumps({**paths, **names}))
    done = add(tmp_path / "zoo", evaluated(tmp_path / "e", step=0), "--run", run)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "zoo/theirs/settings.json").read_text()) == {
        "vocabulary": "words.json", "vqgan": "vqgan", "cache": tmp_path.name,
        "model": {"weights": "lm", "family": "a/b"}, "backbone_weights": "s3://b/w",
    }  # fmt: skip
    (run / "settings.json").unlink()
    refused = add(tmp_path / "other", tmp_path / "e", "--run", run)
    assert "settings.json: no such file. Give --run the --out of a training" in refused.stderr


def test_our_page_is_up_to_date() -> None:
    """Every figure of ours is what its captions have today."""
    page = (ROOT / "docs/zoo.md").read_text(encoding="utf-8")
    assert page == zoo_page.render(ROOT / "zoo", ROOT / "docs"), (
        "python -m tools.zoo page --out docs/zoo.md"
    )
    rows = [yaml.safe_load(row.read_text()) for row in (ROOT / "zoo").glob("*/row.yaml")]
    kinds = [row["kind"] for row in rows]
    assert page.count("| trained by us ✓ |") == kinds.count("trained") > 0
    assert page.count("| evaluated by us") == kinds.count("evaluated")
    assert page.count("| re-scored by us |") == kinds.count("re-scored") > 0


def test_no_share_over_no_pair(tmp_path: Path) -> None:
    """Keeps away: "exact 0.0" of captions of unchanged pairs, of which none can be exact."""
    facts = {"facts": Facts("none").to_json(), "kind": "no_change"}
    items = coco.items([{"key": id, "captions": ["nothing changed"], **facts} for id in CAPTIONS])
    assert add(tmp_path / "zoo", evaluated(tmp_path / "e", items)).returncode == 0
    text = zoo_page.render(tmp_path / "zoo", tmp_path)
    assert "| Theirs | re-scored by us | 3 |  |  |" in text


def test_every_column_of_a_reported_row_stays(tmp_path: Path) -> None:
    """Keeps away: a row of ours without SPICE, which took the papers' SPICE off the page."""
    add(tmp_path / "zoo", evaluated(tmp_path / "e"))
    text = zoo_page.render(tmp_path / "zoo", tmp_path)
    [reported] = [
        line
        for line in text.splitlines()
        if line.startswith("| SCORER+CBR | reported") and "table 12" in line
    ]
    assert "| 38.9 | 18.4 |" in reported


def test_a_reported_row_has_the_marks_of_the_published_page(tmp_path: Path) -> None:
    """Keeps away: a figure of a paper as one to beat, whose scorer or protocol is another."""
    add(tmp_path / "zoo", evaluated(tmp_path / "e"))
    lines = zoo_page.render(tmp_path / "zoo", tmp_path).splitlines()
    rows = {line.split(" | ")[-1]: line for line in lines if "| reported" in line}
    assert rows["procap, table 1 |"].startswith("| ProCap | reported, chosen on test, CIDEr? |")
    assert rows["scorer, table 10 |"].startswith("| SCORER+CBR | reported |")
    assert rows["scorer, table 12 |"].startswith("| SCORER+CBR | reported, single |")


def test_captions_without_a_licence_are_not_copied(tmp_path: Path) -> None:
    """The row has the digest of the published file, and anybody with the file checks it."""
    zoo, file = tmp_path / "zoo", tmp_path / "published.json"
    path = evaluated(tmp_path / "e")
    file.write_text(json.dumps(CAPTIONS))
    published = ("--captions", file, "--captions-at", "theirs/work, sents.json")
    assert "go together" in add(zoo, path, *published[:2]).stderr
    assert "no such file" in add(zoo, path, "--captions", "x", *published[2:]).stderr
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**CAPTIONS, "k0": "the red cube moved"}))
    refused = add(zoo, path, "--captions", other, *published[2:])
    assert "its captions do not have its scores: BLEU-4" in refused.stderr
    assert not (zoo / "theirs").exists()
    done = add(zoo, path, *published)
    assert done.returncode == 0, done.stderr
    text = "".join(one.read_text() for one in (zoo / "theirs").iterdir())
    assert "cube" not in text
    assert "dog" not in text
    assert "Captions at theirs/work, sents.json, SHA-256" in zoo_page.render(zoo, tmp_path)

    def check(*more: object) -> Done:
        return commands.zoo("check", "theirs", "--zoo", zoo, *more)

    references = ("--references", path / "references.json")
    right = check("--captions", file, *references)
    assert right.returncode == 0, right.stderr
    assert right.stdout.endswith("as in the zoo\n")
    assert "CIDEr" in right.stdout
    assert "not the file that was scored" in check("--captions", other, *references).stderr
    missing = check("--captions", file)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "does not have the references of theirs" in missing.stderr
