"""A pair captioner from rendered scenes: features, training, evaluation, two images, a file."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from cc_prep import storage
from cc_prep.formats import training_shards
from cc_train import loading
from cc_train.runs import run_folder, stored_run
from cc_train.text import MARKS
from tests.commands import cc_train
from tests.conftest import Command

SETTINGS = ("image_size=64", "shards.pairs_per_shard=4", "features.threads=1")
SMALL = (
    "encoder.width=32", "decoder.width=32", "decoder.hidden=32", "loop.batch_size=2",
    "loop.steps=4", "loop.validate_every=4", "loop.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Shards of `manifests/pairs.yaml`, and a run of four steps."""
    out = tmp_path_factory.mktemp("pairs") / "out"
    changes = [part for change in SETTINGS for part in ("--set", change)]
    done = prepare("build", "pairs", "--root", synth_root, "--out", out, *changes)
    assert done.returncode == 0, done.stderr
    changes = [part for change in SMALL for part in ("--set", change)]
    done = cc_train("pair", "--shards", out / "shards/train-*.tar", "--valid",
                    out / "shards/val-*.tar", "--out", out / "run", *changes)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "right_exact" in done.stdout
    return out


def test_shards_hold_features_and_no_more_than_asked_for(out: Path, prepare: Command) -> None:
    done = prepare("verify", out)
    assert done.returncode == 0, done.stdout
    samples = [
        s for f in sorted((out / "shards").glob("*.tar")) for s in training_shards.read(str(f))
    ]
    assert len(samples) == 12
    for sample in samples:
        assert sample.features is not None
        assert sample.features.values.shape == (2, 272, 8, 8)
        assert (sample.tokens.shape, sample.scores.shape) == ((2, 0, 0), (2, 0, 2))
        assert sorted(sample.images) == [0, 1]
    for command in ("stats", "report"):
        done = prepare(command, out)
        assert done.returncode == 0, done.stderr


def test_it_is_evaluated_exported_and_captions_images(
    out: Path, synth_root: Path, tmp_path: Path
) -> None:
    test = out / "shards/test-*.tar"
    done = cc_train("evaluate", out / "run", "--shards", test, "--json")
    assert done.returncode == 0, done.stderr
    assert "facts" in json.loads(done.stdout)
    done = cc_train("export", out / "run", tmp_path / "mini", "--shards", test,
                    "--calibrate", out / "shards/val-*.tar")  # fmt: skip
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "mini/README.md").read_text()
    assert "calibration error" in card
    assert '"calibration": {' in card
    images = [next((synth_root / name).glob("*.png")) for name in ("images", "sc_images")]
    captions = []
    for captioner in (out / "run", tmp_path / "mini"):
        done = cc_train("caption", captioner, *images, "--json")
        assert done.returncode == 0, done.stderr
        captions.append(json.loads(done.stdout))
    assert captions[1].get("raw_caption", captions[1]["caption"]) == captions[0]["caption"]
    assert 0 <= captions[1]["confidence"] <= 1
    done = cc_train("caption", tmp_path / "mini", *images)
    caption, confidence = done.stdout.rstrip("\n").split("\t")
    assert caption == captions[1]["caption"]
    assert 0 <= int(confidence.removesuffix(" %")) <= 100
    noise = [tmp_path / name for name in ("a.png", "b.png")]
    for number, path in enumerate(noise):
        pixels = np.random.default_rng(number).integers(0, 256, (64, 64, 3), np.uint8)
        cv2.imwrite(str(path), pixels)
    done = cc_train("caption", tmp_path / "mini", *noise, "--json")
    assert json.loads(done.stdout)["confidence"] < 0.01, "it knows nothing of noise"
    assert (tmp_path / "mini/model.safetensors").stat().st_size < 5e6


def test_training_starts_from_another_run(out: Path, tmp_path: Path) -> None:
    """--init takes over what was learned, and refuses a run of another system."""
    shards = ("--shards", out / "shards/train-*.tar", "--valid", out / "shards/val-*.tar")
    changes = [part for change in SMALL for part in ("--set", change)]
    at_rest = ("--set", "loop.learning_rate=1e-12", "--set", "loop.weight_decay=0")
    done = cc_train("pair", *shards, "--init", out / "run", "--out", tmp_path / "run", *changes,
                    *at_rest)  # fmt: skip
    assert done.returncode == 0, done.stderr
    start, again = (stored_run.read(folder).tensors for folder in (out / "run", tmp_path / "run"))
    assert all(torch.allclose(start[name], again[name], atol=1e-6) for name in start)
    # Its settings and its card name the start, and it goes on with no other one.
    digest = storage.sha256(run_folder.best_model(out / "run")[0])
    started = json.loads((tmp_path / "run/settings.json").read_text())["init"]
    assert (started["name"], started["sha256"]) == ("run", digest)
    done = cc_train("export", tmp_path / "run", tmp_path / "small", "--data", "mine")
    assert done.returncode == 0, done.stderr
    card = (tmp_path / "small/README.md").read_text()
    assert f"| started from | run, SHA-256 `{digest}` |" in card
    assert "It was trained on mine, starting from the weights of run." in card
    assert str(out) not in card
    done = cc_train("pair", *shards, "--out", tmp_path / "run", *changes, *at_rest)
    assert (done.returncode, "Give the same --init" in done.stderr) == (2, True), done.stderr
    # Other words: those that both know keep what was learned of them.
    known = json.loads((out / "run/vocabulary.json").read_text())
    marks = len(MARKS)
    other = [*known[:marks], "unheard", *reversed(known[marks:])]
    (tmp_path / "words.json").write_text(json.dumps(other))
    words = ("--set", f"vocabulary={tmp_path / 'words.json'}")
    done = cc_train("pair", *shards, "--init", out / "run", "--out", tmp_path / "words", *changes,
                    *at_rest, *words)  # fmt: skip
    assert done.returncode == 0, done.stderr
    moved = stored_run.read(tmp_path / "words").tensors["decoder.out.weight"]
    rows = [other.index(word) for word in known]
    assert torch.allclose(moved[rows], start["decoder.out.weight"], atol=1e-6)
    changes = [*changes, "--set", "encoder.width=16"]
    done = cc_train("pair", *shards, "--init", out / "run", "--out", tmp_path / "no", *changes)
    assert (done.returncode, "has other sizes" in done.stderr) == (2, True)


def test_a_captioner_gets_a_map_of_changes(out: Path, synth_root: Path, tmp_path: Path) -> None:
    """Keeps away: a map that is lost between training, evaluation, export and images."""
    changes = [part for change in SMALL for part in ("--set", change)]
    shards = ("--shards", out / "shards/train-*.tar", "--valid", out / "shards/val-*.tar")
    done = cc_train("pair", *shards, "--init", out / "run", "--out", tmp_path / "run", *changes,
                    "--set", "decoder.changes.layers=1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    tensors = stored_run.read(tmp_path / "run").tensors
    start = stored_run.read(out / "run").tensors
    assert any(name.startswith("change_map.") for name in tensors)
    same = torch.equal(tensors["decoder.out.weight"], start["decoder.out.weight"])
    assert same, "the decoder is not used"
    done = cc_train("export", tmp_path / "run", tmp_path / "small", "--shards",
                    out / "shards/test-*.tar", "--calibrate", out / "shards/val-*.tar")  # fmt: skip
    assert done.returncode == 0, done.stderr
    images = [next((synth_root / name).glob("*.png")) for name in ("images", "sc_images")]
    spoken = [cc_train("caption", tmp_path / name, *images, "--json") for name in ("run", "small")]
    first, second = (json.loads(done.stdout) for done in spoken)
    assert first["caption"] == second.get("raw_caption", second["caption"])
    assert 0 <= second["confidence"] <= 1


def test_what_is_calibrated_on_is_not_measured_on(out: Path, tmp_path: Path) -> None:
    shards = out / "shards/val-*.tar"
    both = ("--shards", shards, "--calibrate", shards)
    done = cc_train("export", out / "run", tmp_path / "x", *both)
    assert (done.returncode, "Measure on other pairs" in done.stderr) == (2, True)
    assert not (tmp_path / "x").exists()


def test_sizes_that_do_not_go_together_are_named(out: Path, tmp_path: Path) -> None:
    for change in ("decoder.heads=5", "encoder.heads=3"):
        done = cc_train("pair", "--shards", out / "shards/train-*.tar", "--out", tmp_path / "run",
                        "--set", change)  # fmt: skip
        assert (done.returncode, "divisible by" in done.stderr) == (2, True), done.stderr


def test_systems_that_need_tokens_or_scores_say_so(
    out: Path, tmp_path: Path, prepare: Command
) -> None:
    done = cc_train("stage1", "--shards", out / "shards/train-*.tar", "--out", tmp_path / "run")
    assert (done.returncode, "tokens" in done.stderr) == (2, True)
    done = prepare("score-frames", "pairs", "--out", out)
    assert done.returncode == 2


def test_samples_are_captioned_beside_their_references(out: Path) -> None:
    shards = ("--shards", out / "shards/test-*.tar")
    done = cc_train("caption", out / "run", *shards, "--limit", "1")
    assert done.returncode == 0, done.stderr
    caption, *references = done.stdout.splitlines()
    assert caption.startswith("pairs-test-")
    assert all(line.startswith("    reference: ") for line in references)
    assert len(references) >= 1
    done = cc_train("caption", out / "run", *shards, "--json")
    assert {"key", "caption", "references"} <= json.loads(done.stdout.splitlines()[0]).keys()
    done = cc_train("caption", out / "run", "a.png", "b.png", *shards)
    assert (done.returncode, "Give one of them" in done.stderr) == (2, True)


def test_shards_without_features_are_captioned_from_their_images(out: Path, shards: str) -> None:
    """The demo's shards have none: the captioner's own backbone computes them."""
    done = cc_train("evaluate", out / "run", "--shards", shards, "--json")
    assert done.returncode == 0, done.stderr
    inputs = loading.load(out / "run").inputs
    assert (inputs.reads, inputs.size) == ("features", (64, 64))


def test_training_without_features_says_what_to_build(shards: str, tmp_path: Path) -> None:
    done = cc_train("pair", "--shards", shards, "--out", tmp_path / "run")
    assert (done.returncode, "features" in done.stderr) == (2, True)


def test_a_size_that_does_not_fit_says_which_does(
    synth_root: Path, tmp_path: Path, prepare: Command
) -> None:
    done = prepare(
        "build", "pairs", "--root", synth_root, "--out", tmp_path, "--set", "image_size=100"
    )
    assert done.returncode == 2
    assert "Set image_size=96" in done.stderr
