"""SCORER from rendered scenes: training, resuming, evaluation, the report's heat, two processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from cc_prep.formats import training_shards
from cc_prep.steps.imported_features import UNKNOWN
from cc_train import loading
from cc_train.runs import stored_run
from tests.commands import cc_train
from tests.conftest import Command

PREPARE = ("image_size=64", "shards.pairs_per_shard=4", "features.threads=1")
SMALL = (
    "encoder.width=32", "encoder.heads=2", "encoder.layers=1", "decoder.word_width=16",
    "decoder.heads=2", "decoder.layers=1", "loop.batch_size=2", "loop.validate_every=4",
    "loop.checkpoint_every=2", "loop.log_every=1", "loop.device=cpu", "loop.threads=1",
    "loop.decay_epochs=1",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Shards of `manifests/pairs.yaml`, and a run of four steps."""
    out = tmp_path_factory.mktemp("scorer") / "out"
    changes = [part for change in PREPARE for part in ("--set", change)]
    done = prepare("build", "pairs", "--root", synth_root, "--out", out, *changes)
    assert done.returncode == 0, done.stderr
    train(out, out / "run")
    return out


def train(out: Path, run: Path, *more: str, steps: int = 4, code: int = 0) -> str:
    changes = [part for change in (*SMALL, *more) for part in ("--set", change)]
    done = cc_train("scorer", "--shards", out / "shards/train-*.tar", "--valid",
                    out / "shards/val-*.tar", "--out", run, "--steps", steps, *changes)  # fmt: skip
    assert done.returncode == code, done.stderr
    return str(done.stdout + done.stderr)


def test_it_is_evaluated_reported_and_captions_images(out: Path, synth_root: Path) -> None:
    test = out / "shards/test-*.tar"
    done = cc_train("evaluate", out / "run", "--shards", test, "--json")
    assert done.returncode == 0, done.stderr
    assert "facts" in json.loads(done.stdout)
    done = cc_train("report", out / "run", "--shards", test)
    assert done.returncode == 0, done.stderr
    page = (out / "run/report.html").read_text()
    assert all(f"train: {name}<" in page for name in ("contrast", "cbr", "caption"))
    rows = [json.loads(x) for x in (out / "run/evaluation/items.jsonl").read_text().splitlines()]
    assert ("where each word looked" in page) == any(row["caption"] for row in rows)
    images = [next((synth_root / name).glob("*.png")) for name in ("images", "sc_images")]
    done = cc_train("caption", out / "run", *images, "--json")
    assert done.returncode == 0, done.stderr
    stored = loading.load(out / "run").inputs
    assert (stored.reads, stored.size) == ("features", (64, 64))


def test_a_stopped_run_ends_with_the_same_bytes(out: Path, tmp_path: Path) -> None:
    """Keeps away: CBR's weights, their drawing or the batches that differ after a resume."""
    half = tmp_path / "half"
    shutil.copytree(out / "run", half)
    shutil.rmtree(half / "checkpoints/000004")
    train(out, half)
    name = "checkpoints/000004/training.safetensors"
    whole, resumed = ((run / name).read_bytes() for run in (out / "run", half))
    assert whole == resumed


def test_the_public_codes_way_keeps_cbr_and_draws(out: Path, tmp_path: Path) -> None:
    train(out, tmp_path / "run", "reference_quirks=true", steps=2)
    run = stored_run.read(tmp_path / "run")
    assert run.settings["ways"] == {
        "per_head": False, "trained_cbr": False, "slots": True, "sampled": True,
    }  # fmt: skip
    assert (tmp_path / "run/vocab.json").exists()
    assert "<START>" in (tmp_path / "run/vocab.json").read_text()
    assert loading.load(tmp_path / "run").inputs.backbone


def test_another_run_is_a_start(out: Path, tmp_path: Path) -> None:
    """--init takes over what was learned, also where the words have other numbers."""
    changes = [part for change in (*SMALL, "loop.learning_rate=1e-12", "words=blanks")
               for part in ("--set", change)]  # fmt: skip
    done = cc_train("scorer", "--shards", out / "shards/train-*.tar", "--valid",
                    out / "shards/val-*.tar", "--out", tmp_path / "run", "--init", out / "run",
                    "--steps", 1, *changes)  # fmt: skip
    assert done.returncode == 0, done.stderr
    start, again = (stored_run.read(folder) for folder in (out / "run", tmp_path / "run"))
    known = json.loads((out / "run/vocabulary.json").read_text())
    words = json.loads((tmp_path / "run/vocab.json").read_text())
    shared = [word for word in known if word in words]
    assert len(shared) > 5
    rows = [tensors["speaker.core.embed.weight"] for tensors in (start.tensors, again.tensors)]
    for word in shared:
        assert rows[1][words[word]].allclose(rows[0][known.index(word)], atol=1e-6)


def test_features_of_others(out: Path, tmp_path: Path, synth_root: Path, prepare: Command) -> None:
    """What `export scorer` writes is read again, and learned from without the backbone."""
    done = prepare("export", "scorer", out, "--out", tmp_path / "theirs")
    assert done.returncode == 0, done.stderr
    changes = [*PREPARE, f"features.folder={tmp_path / 'theirs'}"]
    options = [part for change in changes for part in ("--set", change)]
    done = prepare("build", "pairs", "--root", synth_root, "--out", tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr
    shard = "shards/train-000000.tar"
    read = [list(training_shards.read(str(folder / shard))) for folder in (out, tmp_path / "out")]
    for own, imported in zip(*read, strict=True):
        assert np.array_equal(own.features.values, imported.features.values)
        assert imported.features.sha256 == UNKNOWN
    train(tmp_path / "out", tmp_path / "run", steps=2)
    shards = tmp_path / "out/shards/test-*.tar"
    assert cc_train("evaluate", tmp_path / "run", "--shards", shards).returncode == 0
    done = cc_train("caption", tmp_path / "run", *sorted(synth_root.glob("images/*.png"))[:2])
    assert (done.returncode, "efficientnet-lite0" in done.stderr) == (2, True)


def test_mistakes_are_named(out: Path, tmp_path: Path, shards: str) -> None:
    words = {
        "encoder.heads=5": "encoder: width (32) is not divisible by heads (5)",
        "encoder.largest_grid=3": "features is not divisible by",
        "loop.grad_accum_steps=2": "cannot be accumulated",
        "loop.decay_epochs=null": "after how many steps",
        "encoder.width=20": "not divisible by the 8 heads of CBR",
    }
    for change, message in words.items():
        assert message in train(out, tmp_path / "run", change, code=2), change
    done = cc_train("scorer", "--shards", shards, "--out", tmp_path / "run")
    assert (done.returncode, "features" in done.stderr) == (2, True)
