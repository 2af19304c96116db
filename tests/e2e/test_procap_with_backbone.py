"""ProCap on a frozen backbone's features: one build, both stages, evaluation, images, a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cc_prep.formats import tar, training_shards
from cc_train import loading
from tests import run_factory, weight_factory
from tests.commands import cc_train
from tests.conftest import Command


@pytest.fixture(scope="module")
def out(
    tmp_path_factory: pytest.TempPathFactory, weights: Path, synth_root: Path, prepare: Command
) -> Path:
    """Shards with features of all frames, 16 × 16 for 8 × 8 tokens; `stage1` and `stage2`."""
    backbone = weight_factory.write_vqgan(weights / "backbone.safetensors", seed=1, levels=2)
    out = tmp_path_factory.mktemp("features") / "out"
    features = ("features.backbone=vqgan", f"features.weights={backbone}", "features.frames=all")
    shards = run_factory.build(out, weights, synth_root, prepare, *features)
    more = ["--set", "frames=features", "--set", f"backbone_weights={backbone}"]
    done = run_factory.train("stage1", weights, shards, out / "stage1", *more)
    assert done.returncode == 0, done.stderr
    done = run_factory.train(
        "stage2", weights, shards, out / "stage2", "--init", str(out / "stage1")
    )
    assert done.returncode == 0, done.stderr
    return out


def beams(*pairs: object, run: Path) -> list[dict[str, Any]]:
    """The rows of `cc-train caption RUN … --beams 2 --json`."""
    done = cc_train("caption", run, *pairs, "--beams", "2", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def without_features(path: Path, target: Path) -> None:
    with training_shards.write_shard(str(target)) as (writer, _):
        for key, members in tar.read_shard(str(path)):
            meta = json.loads(members["json"])
            del meta["features"]
            edited = {**members, "json": json.dumps(meta).encode()}
            writer.add(key, {name: edited[name] for name in edited if name != "features.npy"})


def test_stored_features_and_images_give_the_same_captions(
    out: Path, synth_root: Path, tmp_path: Path
) -> None:
    done = cc_train("evaluate", out / "stage2", "--shards", out / "shards/*.tar")
    assert done.returncode == 0, done.stderr
    rows = json.loads((out / "stage2/evaluation/predictions.json").read_text())
    captions = {row["image_id"]: row["caption"] for row in rows}
    images = [next(iter(sorted((synth_root / d).iterdir()))) for d in ("images", "sc_images")]
    test = out / "shards/test-*.tar"
    done = cc_train("export", out / "stage2", tmp_path / "mini", "--shards", test)
    assert done.returncode == 0, done.stderr
    [key] = [key for key in captions if "000000" in key and not key.endswith(("nochange", "_n"))]
    [stored] = [row for row in beams("--shards", out / "shards/*.tar", run=out / "stage2")
                if "000000-change" in row["key"]]  # fmt: skip
    for captioner in (out / "stage2", tmp_path / "mini"):
        [row] = beams(*images, run=captioner)
        assert row["caption"] == captions[key]
        # The sentences of so short a training are much alike; their probabilities are not.
        for one, other in zip(row["beams"], stored["beams"], strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=0.02)
    assert loading.load(tmp_path / "mini").inputs.reads == "features"


def test_shards_without_features_are_captioned_from_their_images(
    out: Path, weights: Path, tmp_path: Path
) -> None:
    """They cannot be trained on: whoever tries is told how to build them."""
    for path in (out / "shards").glob("*.tar"):
        without_features(path, tmp_path / path.name)
    done = cc_train("evaluate", out / "stage2", "--shards", tmp_path / "test-*.tar",
                    "--out", tmp_path / "evaluation", "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    for kind, more in (("stage1", "frames=features"), ("stage2", "queries.k=2")):
        init = ("--init", str(out / "stage1")) if kind == "stage2" else ()
        run, shards = tmp_path / "run", f"{tmp_path}/*.tar"
        done = run_factory.train(kind, weights, shards, run, *init, "--set", more)
        assert done.returncode == 2
        assert "holds no features. Build the shards with features" in done.stderr


@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_a_run_goes_on_where_it_stopped(
    out: Path, weights: Path, tmp_path: Path, kind: str
) -> None:
    """Keeps away: statistics that a resumed run loses."""
    more = ["--init", str(out / "stage1")]
    if kind == "stage1":
        backbone = weights / "backbone.safetensors"
        more = ["--set", f"backbone_weights={backbone}", "--set", "frames=features"]
    run = tmp_path / "run"
    shutil.copytree(out / kind, run)
    shutil.rmtree(run / f"checkpoints/{run_factory.STEPS:06d}")
    done = run_factory.train(kind, weights, f"{out}/shards/*.tar", run, *more)
    assert done.returncode == 0, done.stderr
    assert run_factory.model(run) == run_factory.model(out / kind)
