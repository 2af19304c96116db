"""A captioner that the repository knows nothing of goes the whole way."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from cc_prep import storage
from cc_train import Captioner, loading
from cc_train.captioner import Inputs
from cc_train.data import shard_index
from cc_train.evaluation import score_captioner, shard_items
from tests import toy_captioner
from tests.commands import cc_train
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, shards: str) -> Path:
    """Two steps on the shards of six scenes."""
    folder = tmp_path_factory.mktemp("toy") / "run"
    done = cc_train("toy", "--shards", shards, "--out", folder)
    assert done.returncode == 0, done.stderr
    assert "CIDEr" in done.stdout, "it was not validated"
    return folder


def test_it_is_small() -> None:
    """Keeps away: a notion of a captioner that asks more and more of each system."""
    lines = Path(toy_captioner.__file__).read_text().splitlines()
    assert len(lines) <= 60
    named = [
        path for path in (ROOT / "cc_train").rglob("*.py") if "toy" in path.read_text().lower()
    ]
    assert named == []


def test_it_is_evaluated_reported_and_compared(tmp_path: Path, run: Path, shards: str) -> None:
    assert json.loads((run / "validation.json").read_text())
    done = cc_train("evaluate", run, "--shards", shards, "--json")
    assert done.returncode == 0, done.stderr
    assert "CIDEr" in json.loads(done.stdout)["groups"]["total"]
    done = cc_train("report", run, "--shards", shards)
    assert done.returncode == 0, done.stderr
    page = (run / "report.html").read_text()
    assert "toy: run" in page
    assert page.count("data:image/jpeg") >= 2, "before and after of a pair"
    path = tmp_path / "elsewhere"
    done = cc_train("report", run, "--evaluation", path)
    assert (done.returncode, "Evaluate first" in done.stderr) == (2, True)
    (run / "evaluation").rename(path)
    done = cc_train("report", run, "--evaluation", path, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text()
    assert "told apart" in page
    assert "of other weights" not in page
    scores = json.loads((path / "scores.json").read_text())
    (path / "scores.json").write_text(json.dumps({**scores, "weights": "0" * 64}))
    done = cc_train("report", run, "--evaluation", path, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "The scores are of other weights than" in (tmp_path / "page.html").read_text()
    (path / "scores.json").write_text(json.dumps(scores))
    path.rename(run / "evaluation")
    done = cc_train("compare", run, run, "--out", tmp_path / "compare.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "compare.html").exists()


def test_its_captions_are_right_or_wrong(
    tmp_path: Path, run: Path, shards: str, synth_root: Path
) -> None:
    """The facts of shards and of the file that `cc-prep synth` wrote judge captions alike."""
    done = cc_train("evaluate", run, "--shards", shards, "--out", tmp_path / "own")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| facts ")
    own = json.loads((tmp_path / "own/scores.json").read_text())["facts"]
    assert (own["changed pairs"]["pairs"], own["unchanged pairs"]["pairs"]) == (6, 6)
    files = ["--predictions", tmp_path / "own/predictions.json",
             "--references", tmp_path / "own/references.json"]  # fmt: skip
    facts = synth_root / "facts.json"
    done = cc_train("evaluate", *files, "--facts", facts, "--out", tmp_path / "file", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"] == own
    done = cc_train("evaluate", *files, "--out", tmp_path / "none", "--json")
    assert "facts" not in json.loads(done.stdout)


def test_references_as_predictions_are_all_right(tmp_path: Path, shards: str) -> None:
    """Keeps away: a grammar, facts and shards that do not mean the same."""
    items = shard_items.captioned([shards])[1]
    assert all(item.facts is not None for item in items)
    predictions = {item.name: item.references[-1] for item in items}
    (tmp_path / "all.json").write_text(json.dumps(predictions))
    arguments = ["--predictions", tmp_path / "all.json", "--shards", shards]
    done = cc_train("evaluate", *arguments, "--json")
    facts = json.loads(done.stdout)["facts"]
    assert facts["told apart"]["share"] == facts["shares"]["exact"]["share"] == 1
    assert all(share["wrong"] == 0 for share in facts["shares"].values())
    other = tmp_path / "facts.json"
    other.write_text('{"change": {}, "no_change": {}}')
    done = cc_train("evaluate", *arguments, "--facts", other)
    assert done.returncode == 2
    assert done.stderr.startswith(f"cc-train: {other}: no facts of 12 of 12 pairs")


def test_it_captions_two_images_as_exported(tmp_path: Path, run: Path, shards: str) -> None:
    rng = np.random.default_rng(0)
    images = [str(tmp_path / name) for name in ("before.png", "after.png")]
    for image in images:
        cv2.imwrite(image, rng.integers(0, 255, (40, 40, 3), np.uint8))
    done = cc_train("export", run, tmp_path / "mine", "--shards", shards)
    assert done.returncode == 0, done.stderr
    exported = tmp_path / "mine"
    card = (exported / "README.md").read_text()
    assert card.index("| told apart |") < card.index("| exact |") < card.index("| CIDEr |")
    assert "## What it cannot do" in card
    assert "Signature of the scores: `pairs:12|" in card
    assert 'Captioner.from_pretrained("mine")' in card
    assert not (exported / "checkpoints").exists()
    done = cc_train("export", run, exported)
    assert (done.returncode, "already exists" in done.stderr) == (2, True)
    rows = []
    for captioner in (run, exported):
        done = cc_train("caption", captioner, *images, "--beams", "2", "--json")
        assert done.returncode == 0, done.stderr
        rows.append(json.loads(done.stdout))
    assert rows[0]["caption"] == rows[1]["caption"]
    assert len(rows[0]["beams"]) == 2
    saved = Captioner.from_pretrained(run).save_pretrained(tmp_path / "saved")
    assert str(Captioner.from_pretrained(saved)(*images, beams=2)) == rows[0]["caption"]
    assert "## What it cannot do" in (saved / "README.md").read_text()


def test_a_card_has_the_scores_of_its_own_weights(tmp_path: Path, run: Path, shards: str) -> None:
    """Keeps away: a card with scores of an older checkpoint, and "greedy" of beams."""
    done = cc_train("evaluate", run, "--shards", shards, "--beams", "2")
    assert done.returncode == 0, done.stderr
    assert cc_train("export", run, tmp_path / "beams").returncode == 0
    assert "captions of 2 beams" in (tmp_path / "beams/README.md").read_text()
    path = run / "evaluation/scores.json"
    scores = json.loads(path.read_text())
    path.write_text(json.dumps({**scores, "step": scores["step"] - 1}))
    done = cc_train("export", run, tmp_path / "older")
    assert (done.returncode, "Evaluate again" in done.stderr) == (2, True)
    assert not (tmp_path / "older").exists()


def test_scores_of_an_exported_captioner_name_its_weights(
    tmp_path: Path, run: Path, shards: str
) -> None:
    """Keeps away: the scores of another exported captioner, which are of step 0 as well."""
    out = tmp_path / "exported"
    assert cc_train("export", run, out, "--shards", shards).returncode == 0
    path = out / "evaluation/scores.json"
    scores = json.loads(path.read_text())
    assert scores["weights"] == storage.sha256(out / "model.safetensors")
    assert cc_train("export", out, tmp_path / "again", "--license", "mit").returncode == 0
    path.write_text(json.dumps({**scores, "weights": "0" * 64}))
    done = cc_train("export", out, tmp_path / "other", "--license", "mit")
    assert (done.returncode, "other weights" in done.stderr) == (2, True)


def test_an_exported_captioner_keeps_its_evaluation(tmp_path: Path, run: Path, shards: str) -> None:
    """Keeps away: "It was not measured" of what was evaluated since, or figures of other pairs; an
    upload without the scores, which takes those of an earlier one off the hub.
    """
    shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation"))
    first = tmp_path / "first"
    details = ("--license", "mit", "--data", "our scenes")
    done = cc_train("export", tmp_path / "run", first, *details)
    assert (done.returncode, "not measured" in (first / "README.md").read_text()) == (0, True)
    done = cc_train("evaluate", first, "--shards", shards)
    assert done.returncode == 0, done.stderr
    second, third = tmp_path / "second", tmp_path / "third"
    assert cc_train("export", first, second).returncode == 0
    Captioner.from_pretrained(second).save_pretrained(third)
    scores = (first / "evaluation/scores.json").read_bytes()
    for folder in (second, third):
        assert (folder / "evaluation/scores.json").read_bytes() == scores
        card = (folder / "README.md").read_text()
        assert "On 12 pairs, greedy captions." in card
        assert "| CIDEr |" in card
        assert card.count("## How good it is\n\nOn 12 pairs") == 1
        assert 'license: "mit"' in card
        assert "| data | our scenes |" in card
        assert "\n\n## What it cannot do\n" in card
        assert "rounded" not in card
    (second / "README.md").write_text(card.replace("On 12 pairs", "On 12 of our pairs"))
    Captioner.from_pretrained(second).save_pretrained(tmp_path / "own words")
    assert "On 12 of our pairs" in (tmp_path / "own words/README.md").read_text()
    path = second / "evaluation/scores.json"
    path.write_text(json.dumps({**json.loads(scores), "weights": "0" * 64}))
    done = cc_train("export", second, tmp_path / "other")
    assert (done.returncode, "other weights" in done.stderr) == (2, True)


def test_scores_of_a_training_are_of_weights_that_were_not_rounded(
    tmp_path: Path, run: Path, shards: str
) -> None:
    """Keeps away: the digest of a file that never captioned these pairs, as if it had."""
    shutil.copytree(run, tmp_path / "run")
    assert cc_train("evaluate", tmp_path / "run", "--shards", shards).returncode == 0
    scored = json.loads((tmp_path / "run/evaluation/scores.json").read_text())["weights"]
    note = "weights before these were rounded to float16"
    for source, target in (("run", "once"), ("once", "twice"), ("twice", "thrice")):
        more = ("--license", "mit") if target == "twice" else ()
        done = cc_train("export", tmp_path / source, tmp_path / target, *more)
        assert done.returncode == 0, done.stderr
        scores = json.loads((tmp_path / target / "evaluation/scores.json").read_text())
        assert scores["scored_weights"] == scored
        assert note in (tmp_path / target / "README.md").read_text()
    done = cc_train("report", tmp_path / "once")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "once/report.html").read_text()
    assert "weights before an export rounded these to float16" in page
    assert cc_train("evaluate", tmp_path / "once", "--shards", shards).returncode == 0
    assert cc_train("export", tmp_path / "once", tmp_path / "again").returncode == 0
    assert note not in (tmp_path / "again/README.md").read_text()


def test_an_exported_captioner_is_exported_with_its_scores(
    tmp_path: Path, run: Path, shards: str
) -> None:
    """Keeps away: scores of step 2 that are not those of an exported folder, which has no step."""
    shutil.copytree(run, tmp_path / "run")
    assert cc_train("evaluate", tmp_path / "run", "--shards", shards).returncode == 0
    for source, target in (("run", "once"), ("once", "twice")):
        done = cc_train("export", tmp_path / source, tmp_path / target, "--license", "mit")
        assert done.returncode == 0, done.stderr
        assert "| CIDEr |" in (tmp_path / target / "README.md").read_text()


def test_the_step_is_that_of_the_weights_that_captioned(
    tmp_path: Path, run: Path, shards: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the step of weights that a training saved meanwhile, and scores that are lost
    where they cannot be read a second time.
    """
    shutil.copytree(run, tmp_path / "run")
    score = score_captioner.score
    best = storage.sha256(run / "checkpoints/000002/model.safetensors")

    def while_it_trains_on(*arguments: Any, **named: Any) -> Any:
        shutil.rmtree(tmp_path / "run/checkpoints")
        return score(*arguments, **named)

    monkeypatch.setattr(score_captioner, "score", while_it_trains_on)
    done = cc_train("evaluate", tmp_path / "run", "--shards", shards)
    assert done.returncode == 0, done.stderr
    scores = json.loads((tmp_path / "run/evaluation/scores.json").read_text())
    assert (scores["step"], scores["weights"]) == (2, best)


def test_scores_on_training_pairs_say_so(tmp_path: Path, run: Path, shards: str) -> None:
    """Keeps away: a card that praises a captioner for what it has learned by heart."""
    trained = (run / "training_keys.txt").read_text().split()
    keys = [entry.key for entry in shard_index.read([shards])]
    assert 0 < len(trained) < len(keys) == 12, "some were held out to validate on"
    note = f"{len(trained)} of these 12 pairs have the keys of pairs that it was trained on"
    done = cc_train("evaluate", run, "--shards", shards, "--out", tmp_path / "scores")
    assert note in done.stdout
    done = cc_train("export", run, tmp_path / "small", "--shards", shards)
    assert (done.returncode, note in done.stderr) == (0, True), done.stderr
    assert note in (tmp_path / "small/README.md").read_text()
    assert not (tmp_path / "small/training_keys.txt").exists()
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/training_keys.txt").write_text("another\n")
    done = cc_train("export", tmp_path / "run", tmp_path / "other", "--shards", shards)
    assert (done.returncode, "have the keys" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("option", ["--references", "--types", "--predicted-only"])
def test_what_is_of_predictions_alone_is_refused(run: Path, shards: str, option: str) -> None:
    """Keeps away: official references that were given, and not what the run was scored against."""
    values = [] if option == "--predicted-only" else [ROOT / "README.md"]
    done = cc_train("evaluate", run, "--shards", shards, option, *values)
    assert done.returncode == 2
    assert "are of --predictions" in done.stderr


def test_load(run: Path) -> None:
    captioner = loading.load(run)
    assert captioner.inputs == Inputs((32, 32))
    pair = torch.zeros(3, 2, 32, 32, 3, dtype=torch.uint8)
    greedy, searched = captioner.caption(pair), captioner.caption(pair, beams=1)
    assert [one.text for one in greedy] == [one.text for one in searched]
    assert all(one.mask is None for one in greedy)
