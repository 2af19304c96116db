"""Each data set of the field from its official layout to captioners, by the README's commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cc_prep.formats import training_shards
from tests import commands
from tests.commands import cc_train
from tests.dataset_factory import MAKERS

# One thread a network, so that a busy machine does not make the threads wait for each other.
THREADS = " ".join(f"--set {step}.threads=1" for step in ("interpolate", "score", "tokenize"))
PREPARED = f"--set image_size=32 {THREADS}"
# The reference's networks are far too large for a test; all else is the manifest's.
SMALL = (
    "--steps 2 --set loop.batch_size=2 --set loop.device=cpu --set loop.threads=1 "
    "--set loop.warmup_steps=1 --set network.width=64 --set network.layers=1"
)
DECODER = "--set decoder.width=32 --set decoder.heads=2 --set decoder.hidden=32"
TRAINED = {"stage1": SMALL, "stage2": f"{SMALL} {DECODER}"}
CHAIN = (
    "--steps 2 --set loop.batch_size=2 --set loop.device=cpu --set loop.threads=1 "
    "--set loop.warmup_steps=1 --set encoder.width=32 --set encoder.heads=2 "
    "--set regions.queries=4 --set regions.pixel_width=8 --set regions.layers=1 "
    "--set decoder.width=32 --set decoder.heads=2 --set decoder.hidden=32 --set decoder.layers=1"
)
PAIR = (
    "--steps 2 --set loop.batch_size=2 --set loop.device=cpu --set loop.threads=1 "
    "--set loop.warmup_steps=1 --set encoder.width=32 --set encoder.heads=2 "
    "--set decoder.width=32 --set decoder.heads=2 --set decoder.hidden=32 --set decoder.layers=1"
)
SCORER = (
    "--steps 2 --set loop.batch_size=2 --set loop.device=cpu --set loop.threads=1 "
    "--set encoder.width=32 --set encoder.heads=2 --set encoder.layers=1 "
    "--set decoder.word_width=16 --set decoder.heads=2 --set decoder.layers=1"
)


def make(*arguments: object) -> None:
    done = commands.make(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", ["clevr", "clevr_dc", "spot", "edit", "levir"])
def test_from_raw_files_to_a_captioner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    MAKERS[name](tmp_path / "data")
    monkeypatch.setenv(f"{name.upper()}_ROOT", str(tmp_path / "data"))
    out = tmp_path / "out"
    values = (f"DATASET={name}", f"OUT={out}")
    if name == "clevr":
        make("interpolate", *values, f"ARGS={PREPARED}")
        make("score", *values, f"ARGS={PREPARED}")
    make("shards", *values, f"ARGS={PREPARED}")
    for stage, more in TRAINED.items():
        make(stage, *values, f"ARGS={more}")
    done = cc_train("evaluate", out / "stage2", "--shards", f"{out}/shards/test-*.tar")
    assert done.returncode == 0, done.stderr
    scores = json.loads((out / "stage2/evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] > 0


MASK_CLASSES = {
    "levir_mci": ["road", "building"],
    "second_cc": ["low vegetation", "ground", "tree", "water", "building", "playground"],
    "whu_cdc": ["building"],
}


@pytest.mark.parametrize("name", ["clevr", "clevr_dc", "spot", "edit", "levir", *MASK_CLASSES])
def test_from_raw_files_to_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also keeps away: without distractors, a batch that waits for them, or is swapped.

    The shards that are missing are made by `make scorer` itself.
    """
    MAKERS[name](tmp_path / "data")
    monkeypatch.setenv(f"{name.upper()}_ROOT", str(tmp_path / "data"))
    values = (f"DATASET={name}", f"OUT={tmp_path / 'out'}")
    sizes = "--set image_size=32 --set features.threads=1"
    make("scorer", *values, f"PREPARE={sizes}", f"ARGS={SCORER}")
    make("evaluate", *values, "RUN=scorer")
    scores = json.loads((tmp_path / "out/scorer/evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] > 0
    assert (tmp_path / "out/scorer/report.html").exists()
    [shard] = (tmp_path / "out/shards").glob("train-*.tar")
    for sample in training_shards.read(str(shard)):
        assert sample.meta.get("mask_classes") == MASK_CLASSES.get(name)
        if name in MASK_CLASSES:
            assert sample.mask().any() == (sample.meta["kind"] == "change")


@pytest.mark.parametrize("name", ["clevr", "spot"])
def test_from_raw_files_to_the_pair_captioner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Keeps away: a public data set, with unchanged pairs or without, that `pair` cannot learn."""
    MAKERS[name](tmp_path / "data")
    monkeypatch.setenv(f"{name.upper()}_ROOT", str(tmp_path / "data"))
    values = (f"DATASET={name}", f"OUT={tmp_path / 'out'}")
    sizes = "--set image_size=32 --set features.threads=1"
    make("pair", *values, f"PREPARE={sizes}", f"ARGS={PAIR}")
    make("evaluate", *values, "RUN=pair")
    scores = json.loads((tmp_path / "out/pair/evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] > 0


@pytest.mark.parametrize("name", MASK_CLASSES)
def test_from_raw_files_to_captions_with_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Keeps away: a data set whose classes of masks no captioner that says where can learn."""
    MAKERS[name](tmp_path / "data")
    monkeypatch.setenv(f"{name.upper()}_ROOT", str(tmp_path / "data"))
    values = (f"DATASET={name}", f"OUT={tmp_path / 'out'}")
    sizes = "--set image_size=32 --set features.threads=1"
    make("chain", *values, f"PREPARE={sizes}", f"ARGS={CHAIN}")
    make("evaluate", *values, "RUN=chain")
    scores = json.loads((tmp_path / "out/chain/evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] > 0
    assert scores["masks"]["IoU"].keys() == {"unchanged", *MASK_CLASSES[name]}
    assert scores["masks"].keys() >= {"mIoU", "mIoU-change", "IoU", "F1"}
    written = tmp_path / "out/chain/evaluation/predicted_masks"
    assert len(list(written.glob("*.png"))) == scores["masks"]["pairs"]
