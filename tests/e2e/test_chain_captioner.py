"""The chain from rendered scenes: training, resuming, scores of masks, files for people."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import cv2
import pytest
import torch

from cc_prep.errors import UserError
from cc_train import loading, start, systems
from cc_train.runs import stored_run
from cc_train.training.task import TrainingRequest
from tests.commands import cc_train
from tests.conftest import Command

PREPARE = ("image_size=64", "shards.pairs_per_shard=4", "features.threads=1")
SETTINGS = {
    "encoder": {"width": 32, "heads": 2},
    "regions": {"queries": 4, "pixel_width": 8, "layers": 1},
    "decoder": {"width": 32, "heads": 2, "hidden": 32, "layers": 1},
    "loop": {
        "steps": 4, "batch_size": 2, "learning_rate": 1e-3, "validate_every": 4,
        "checkpoint_every": 2, "log_every": 1, "device": "cpu", "threads": 1,
    },
}  # fmt: skip


def train(
    out: Path, run: Path, init: Path | None = None, system: str = "chain", **changes: object
) -> None:
    chosen = {name: value for name, value in {**SETTINGS, **changes}.items() if value is not None}
    settings = systems.recipe(system).Settings.model_validate(chosen)
    shards = ([f"{out}/shards/train-*.tar"], [f"{out}/shards/val-*.tar"])
    start.train(system, settings, TrainingRequest(*shards, run, init))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Shards of `manifests/pairs.yaml`, and a run of four steps."""
    out = tmp_path_factory.mktemp("chain") / "out"
    changes = [part for change in PREPARE for part in ("--set", change)]
    done = prepare("build", "pairs", "--root", synth_root, "--out", out, *changes)
    assert done.returncode == 0, done.stderr
    train(out, out / "run")
    return out


def test_its_masks_are_scored_and_shown(out: Path, tmp_path: Path) -> None:
    """Keeps away: masks that evaluate, report or export lose on the way."""
    assert '"mIoU_change"' in (out / "run/log.jsonl").read_text()
    test = out / "shards/test-*.tar"
    done = cc_train("evaluate", out / "run", "--shards", test, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)
    assert {"facts", "masks", "faithfulness"} <= scores.keys()
    contradictions = scores["faithfulness"]["contradictions"]
    assert {"change without a mask", "no change with a mask"} == contradictions.keys()
    done = cc_train("report", out / "run", "--shards", test)
    assert done.returncode == 0, done.stderr
    page = (out / "run/report.html").read_text()
    assert "Below the images, masks" in page
    assert "<th>changed at all</th>" in page
    assert "contradiction: no change with a mask" in page
    assert "caption and mask" in (out / "run/evaluation/table.md").read_text()
    done = cc_train("export", out / "run", tmp_path / "packed")
    assert done.returncode == 0, done.stderr
    assert "| mIoU-change of masks |" in (tmp_path / "packed/README.md").read_text()


def test_a_damaged_true_mask_is_named_on_the_page(out: Path, tmp_path: Path) -> None:
    """Keeps away: a traceback in place of a page, for one byte of one mask."""
    for name in ("run", "shards"):
        shutil.copytree(out / name, tmp_path / name)
    test = f"{tmp_path}/shards/test-*.tar"
    done = cc_train("evaluate", tmp_path / "run", "--shards", test)
    assert done.returncode == 0, done.stderr
    [shard] = (tmp_path / "shards").glob("test-*.tar")
    (tmp_path / "shards/index.parquet").unlink()  # without it no checksum refuses the sample
    with tarfile.open(shard) as opened:
        mask = next(one for one in opened if one.name.endswith(".mask.png"))
    with shard.open("r+b") as file:
        file.seek(mask.offset_data)
        file.write(b"x" * mask.size)
    done = cc_train("report", tmp_path / "run", "--shards", test)
    assert done.returncode == 0, done.stderr
    key = mask.name.partition(".")[0]
    assert f"{key} is shown without its mask" in (tmp_path / "run/report.html").read_text()


def test_two_images_get_a_mask_and_an_overlay(out: Path, synth_root: Path, tmp_path: Path) -> None:
    images = [next((synth_root / name).glob("*.png")) for name in ("images", "sc_images")]
    mask, overlay = tmp_path / "mask.png", tmp_path / "overlay.jpg"
    done = cc_train("caption", out / "run", *images, "--mask", mask, "--overlay", overlay)
    assert done.returncode == 0, done.stderr
    assert cv2.imread(str(mask)).shape[:2] == (64, 64)
    assert cv2.imread(str(overlay)).shape[0] >= 320
    done = cc_train("caption", "captioner-mini", *images, "--mask", tmp_path / "none.png")
    assert (done.returncode, done.stdout, "predicts no masks" in done.stderr) == (2, "", True)
    assert not (tmp_path / "none.png").exists()


def test_a_stopped_run_ends_with_the_same_bytes(out: Path, tmp_path: Path) -> None:
    """Keeps away: sampled words or the networks of consistency that differ after a resume."""
    half = tmp_path / "half"
    shutil.copytree(out / "run", half)
    shutil.rmtree(half / "checkpoints/000004")
    train(out, half)
    name = "checkpoints/000004/training.safetensors"
    assert (out / "run" / name).read_bytes() == (half / name).read_bytes()


def test_it_starts_from_a_pair_captioner_and_from_itself(out: Path, tmp_path: Path) -> None:
    """Keeps away: a trunk that is not taken over, or changes although it is frozen."""
    train(out, tmp_path / "pair", system="pair", regions=None)
    train(out, tmp_path / "run", tmp_path / "pair", trunk_rate=0.0)
    pair, run = (stored_run.read(tmp_path / name) for name in ("pair", "run"))
    taken = [name for name in pair.tensors if name in run.tensors]
    assert len(taken) == len(pair.tensors)
    for name in taken:
        assert torch.equal(run.tensors[name], pair.tensors[name]), name
    train(out, tmp_path / "again", tmp_path / "run")
    images = torch.zeros(1, 2, 64, 64, 3, dtype=torch.uint8)
    [caption] = loading.load(tmp_path / "again").caption(images, beams=2)
    assert caption.mask is not None
    assert len(caption.beams) == 2
    with pytest.raises(UserError, match="has other sizes"):
        train(out, tmp_path / "no", tmp_path / "run", encoder={"width": 16, "heads": 2})
