"""`make mllm` as one command: its own lines, a small model in the place of the large one."""

from __future__ import annotations

import json
from pathlib import Path

from cc_prep.formats import training_shards
from cc_train.runs import stored_run
from tests import commands, vlm_factory
from tests.commands import Done

PREPARE = "--set entities.min_count=1 --set entities.features=lab"
TRAIN = "--set loop.steps=1 --set loop.batch_size=2 --set loop.device=cpu --set loop.log_every=1"


def make(*arguments: object, **more: object) -> Done:
    return commands.make("mllm", *arguments, **more)


def test_from_rendered_pairs_to_a_captioner_with_all_three_parts(
    synth_root: Path, tmp_path: Path
) -> None:
    """Keeps away: a target whose steps, each of which works, do not fit together."""
    out, model = tmp_path / "out", vlm_factory.save(tmp_path, "lm")
    done = make(
        f"OUT={out}", "FOUND=yes", f"PREPARE={PREPARE}",
        f"ARGS={TRAIN} --set model.weights={model}", SYNTH_ROOT=synth_root,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    samples = list(training_shards.read(str(out / "shards/train-000000.tar")))
    assert all("entities" in sample.meta and sample.features is not None for sample in samples)
    run = stored_run.read(out / "mllm", "mllm")
    assert run.settings["attention"]["where"] == "vision"
    assert run.settings["entity"]["source"] == "retrieved"
    logged = [json.loads(line) for line in (out / "mllm/log.jsonl").read_text().splitlines()]
    assert any("inside" in line for line in logged)
    assert "right_told_apart" in done.stdout


def test_real_images_are_prepared_for_what_their_manifest_trains(tmp_path: Path) -> None:
    """Keeps away: shards of small images without masks, which the training refuses at its end."""
    done = make("-n", f"OUT={tmp_path}", "BIN=bin", "DATASET=spot")
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace("'", "")
    order = [text.index(f"bin/{name}") for name in
             ("cc-prep changes spot", "cc-prep entities spot", "cc-prep build spot",
              "cc-train mllm --config spot")]  # fmt: skip
    assert order == sorted(order)
    assert "image_size" not in text
    assert "--init" not in text


def test_scenes_are_rendered_where_there_are_none(tmp_path: Path) -> None:
    """Keeps away: a target that asks a stranger for data that it could make itself."""
    settings = (f"BIN={tmp_path}", f"OUT={tmp_path / 'out'}", "SCENES=7")
    stub = tmp_path / "cc-prep"
    stub.write_text("#!/bin/sh\necho $@ >&2; exit 3\n")
    stub.chmod(0o755)
    done = make(*settings, SYNTH_ROOT=tmp_path / "data")
    assert f"synth {tmp_path / 'data'} --scenes 7 --seed 8 --size 112" in done.stderr
    (tmp_path / "data").mkdir()
    (tmp_path / "data/splits.json").write_text("{}")
    for done in (make(*settings, SYNTH_ROOT=tmp_path / "data"),
                  make(*settings, "PREPARE=--root own", SYNTH_ROOT=tmp_path / "none")):  # fmt: skip
        assert "build synth" in done.stderr
        assert "--scenes" not in done.stderr


def test_a_manifest_without_a_model_is_refused_at_once(tmp_path: Path) -> None:
    """Keeps away: hours of preparation that end with "no model is named"."""
    stub = tmp_path / "cc-prep"
    stub.write_text("#!/bin/sh\necho called $@ >&2; exit 3\n")
    stub.chmod(0o755)
    values = (f"BIN={tmp_path}", f"OUT={tmp_path / 'out'}", "DATASET=synth_features")
    done = make(*values)
    assert "make mllm: synth_features names no model. Give one: ARGS='--set" in done.stderr
    assert (done.returncode, "called" in done.stderr) == (2, False)
    assert "called changes synth_features" in make(*values, "ARGS=--set model.weights=x").stderr
