"""Users' mistakes with stage 1, stage 2, scores and captions: one line each, exit code 2."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.formats import tar
from cc_train.cli import cli
from cc_train.systems.procap.stage1 import read_encoder
from tests import commands, weight_factory
from tests.conftest import BIN
from tests.shard_factory import npy

GRID = (4, 4)
STAGE1 = ["network.width=64", "network.layers=1", "loop.batch_size=2", "loop.device=cpu",
          "loop.log_every=1"]  # fmt: skip
STAGE2 = ["decoder.width=16", "decoder.heads=2", "decoder.hidden=16", "decoder.length=8",
          "loop.batch_size=2", "loop.device=cpu", "loop.threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def vqgan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return weight_factory.write_vqgan(tmp_path_factory.mktemp("weights") / "vqgan.safetensors")


def write_shard(path: Path, vqgan: Path, scenes: range, captions: bool = True) -> None:
    """Random tokens of scenes, half of them unchanged, without images."""
    rng = np.random.default_rng(0)
    with tar.write_shard(str(path)) as (writer, _):
        for scene in scenes:
            for kind in ("change", "nochange"):
                meta = {
                    "id": f"{scene:06d}", "kind": "change" if kind == "change" else "no_change",
                    "change_type": "add" if kind == "change" else None,
                    "captions": ["a cube has moved" if kind == "change" else "no change"],
                    "frames": 5, "height": 16, "width": 16,
                    "tokenizer": weights.locate(str(vqgan)).name,
                    "tokenizer_sha256": weights.locate(str(vqgan)).sha256,
                }  # fmt: skip
                meta["captions"] = meta["captions"] if captions else []
                tokens = rng.integers(0, weight_factory.CODES, (5, *GRID)).astype(np.int16)
                members = {
                    "json": json.dumps(meta).encode(),
                    "tokens.npy": npy(tokens),
                    "scores.npy": npy(np.zeros((2, 1, 5), np.float32)),
                }
                writer.add(f"synth-train-{scene:06d}-{kind}", members)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, vqgan: Path) -> Path:
    path = tmp_path_factory.mktemp("shards") / "train-000000.tar"
    write_shard(path, vqgan, range(6))
    return path


def options(values: list[str]) -> list[str]:
    return [part for value in values for part in ("--set", value)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, shard: Path, vqgan: Path) -> Path:
    """`stage1` and `stage2`, two steps each."""
    folder = tmp_path_factory.mktemp("runs")
    common = ["--shards", str(shard), "--steps", "2"]
    for kind, more in (
        ("stage1", [*STAGE1, f"vqgan={vqgan}"]),
        ("stage2", STAGE2),
    ):
        arguments = [kind, *common, "--out", str(folder / kind), *options(more)]
        if kind == "stage2":
            arguments += ["--init", str(folder / "stage1")]
        cli.main(arguments, standalone_mode=False)
    return folder


def refused(arguments: list[object], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        cli.main([str(part) for part in arguments], standalone_mode=False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["loop.global_batch_size=4", "loop.grad_accum_steps=2"], "Leave out grad_accum_steps"),
        (["loop.batch_size=64"], "fewer than a step needs"),
        (["keyframes.k=4"], "keyframes.k is 4, synth-train"),
        (["frames=pixels"], "keyframes.images=all"),
        (["crop=0.75"], "tokens cannot be cropped. Set frames=pixels"),
        (["text=none"], "text=none shows none. Set losses.align=0"),
        (["masks.random=0.9"], "the chances of the masks do not sum to 1"),
        (["losses.mms=1"], 'Did you mean "losses.msm"?'),
        (["network.width=100"], "network.width"),
        (["vqgan=nowhere.pt"], "neither a known name nor a file"),
        (["stream.bufer=3"], 'Did you mean "stream.buffer"?'),
        (["loop.device=cuda"], "torch finds no GPU"),
    ],
)
def test_stage1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shard: Path,
    vqgan: Path,
    more: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    values = [*STAGE1, f"vqgan={vqgan}", *more]
    run = tmp_path / "run"
    refused(["stage1", "--shards", shard, "--out", run, "--steps", 1, *options(values)], message)


def test_stage1_starts_from_clip_s_blocks(tmp_path: Path, shard: Path, vqgan: Path) -> None:
    """The first blocks of the image transformer; another width is refused."""
    clip = weight_factory.write_clip4idc(tmp_path / "clip.safetensors")
    arguments = ["stage1", "--shards", str(shard), "--steps", "1", "--init", str(clip)]
    settings = [*STAGE1, f"vqgan={vqgan}", "network.layers=2", "loop.learning_rate=1e-9"]
    cli.main(
        [*arguments, "--out", str(tmp_path / "run"), *options(settings)], standalone_mode=False
    )
    encoder, _ = read_encoder(tmp_path / "run")
    blocks = load_file(clip)
    for name, tensor in encoder.transformer.state_dict().items():
        assert torch.allclose(tensor, blocks[f"visual.transformer.{name}"], atol=1e-6), name
    for wrong in ("network.width=128", "network.layers=4"):
        more = options([*settings, wrong])
        refused([*arguments, "--out", tmp_path / wrong, *more], "Give CLIP's weights (ViT-B-32.pt)")


def test_tokens_of_a_file_that_is_not_named(tmp_path: Path, shard: Path) -> None:
    arguments = ["stage1", "--shards", shard, "--out", tmp_path / "run"]
    refused(arguments, "Name that file with --set vqgan=FILE")
    other = weight_factory.write_vqgan(tmp_path / "vqgan.safetensors", seed=1)
    refused([*arguments, "--set", f"vqgan={other}"], "not with vqgan.safetensors@")


@pytest.mark.parametrize("how", ["train", "valid"])
@pytest.mark.parametrize("kind", ["stage1", "stage2"])
def test_tokens_of_two_tokenizers(
    tmp_path: Path, vqgan: Path, shard: Path, runs: Path, kind: str, how: str
) -> None:
    """Keeps away: a captioner trained or validated on tokens that mean something else."""
    other = weight_factory.write_vqgan(tmp_path / "other.safetensors", seed=1)
    theirs = tmp_path / "train-000001.tar"
    write_shard(theirs, other, range(6, 12))
    more = ["--shards" if how == "train" else "--valid", theirs]
    if kind == "stage1":
        more += options([*STAGE1, f"vqgan={vqgan}"])
    else:
        more += ["--init", runs / "stage1", *options(STAGE2)]
    arguments = [kind, "--shards", shard, "--out", tmp_path / "run", "--steps", 1, *more]
    with pytest.raises(UserError) as caught:
        cli.main([str(part) for part in arguments], standalone_mode=False)
    message = str(caught.value)
    assert f"{theirs}: synth-train-000006-change holds tokens of other.safetensors@" in message
    assert "where those of vqgan.safetensors@" in message
    assert not (tmp_path / "run").exists()


def test_a_moved_tokenizer_is_the_same(tmp_path: Path, vqgan: Path, shard: Path) -> None:
    """The digest counts and not the file's name; runs say which it was."""
    renamed = tmp_path / "renamed.safetensors"
    renamed.write_bytes(vqgan.read_bytes())
    arguments = ["stage1", "--shards", str(shard), "--out", str(tmp_path / "run"), "--steps", "1"]
    cli.main([*arguments, *options([*STAGE1, f"vqgan={renamed}"])], standalone_mode=False)
    settings = json.loads((tmp_path / "run/settings.json").read_text())
    assert settings["tokenizer_sha256"] == weights.locate(str(vqgan)).sha256


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "queries.k=-1"], "queries.k"),
        (["--set", "decoder.heads=3"], "decoder: width (16) is not divisible by heads (3)"),
        (["--set", "vocabulary=nowhere.json"], "nowhere.json"),
        (["--set", "frames=pixels"], "Leave frames out with --init"),
        (["--set", "network={width: 128}"], "Leave network out with --init"),
        (["--valid", "SHARD"], "12 samples are in --shards and in --valid"),
        (["--init", "nowhere"], "no such file or folder"),
        (["--init", "STAGE2"], "a run of stage2, not of stage1"),
        (["--config", "clver"], 'Did you mean "clevr"?'),
    ],
)
def test_stage2(tmp_path: Path, shard: Path, runs: Path, more: list[str], message: str) -> None:
    named = {"SHARD": str(shard), "STAGE2": str(runs / "stage2")}
    arguments = ["stage2", "--shards", shard, "--out", tmp_path / "run", "--init", runs / "stage1"]
    refused([*arguments, *options(STAGE2), "--steps", 1, *(named.get(m, m) for m in more)], message)
    assert not (tmp_path / "run").exists()


def test_shards_that_cannot_be_captioned(tmp_path: Path, vqgan: Path, runs: Path) -> None:
    path = tmp_path / "train-000000.tar"
    write_shard(path, vqgan, range(4), captions=False)
    arguments = ["--shards", path, "--out", tmp_path / "run"]
    refused(["stage2", *arguments, "--init", runs / "stage1"], "the shards hold no captions")
    refused(["evaluate", runs / "stage2", "--shards", path], "has a caption")
    with tar.write_shard(str(path)) as (writer, _):
        writer.add("a-b-0-change", {"json": b"{}"})
        writer.add("a-b-1-change", {"json": b"{}"})
    refused(["stage1", *arguments], "the shards hold no tokens")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda run, pair: ["caption", run, pair[0]], "only one image"),
        (lambda run, pair: ["caption", run, pair[0], "nowhere.png"], "nowhere.png"),
        (lambda run, pair: ["caption", run, pair[0], __file__], "test_bad_trainings.py"),
        (
            lambda run, pair: ["caption", run.parent / "stage1", *pair],
            "a run of stage1 is no captioner",
        ),
        (lambda run, pair: ["caption", "nowhere", *pair], "no checkpoint of a run"),
        (lambda run, pair: ["caption", run, "--pairs", "nowhere.csv"], "nowhere.csv"),
        (lambda run, pair: ["caption", run, "--pairs", run], "no pairs in it"),
        (lambda run, pair: ["caption", run, *pair, "--pairs", run], "both given"),
        (lambda run, pair: ["evaluate"], "nothing is given to score"),
        (lambda run, pair: ["evaluate", run], "nothing is given to score"),
        (
            lambda run, pair: ["evaluate", "--predictions", "no.json", "--references", "x"],
            "no.json",
        ),
        (lambda run, pair: ["evaluate", run, "--predictions", "no.json"], "needs either"),
        (lambda run, pair: ["report", run.parent], "no run"),
    ],
)
def test_captions(
    tmp_path: Path, runs: Path, make: Callable[..., list[object]], message: str
) -> None:
    pair = [tmp_path / name for name in ("before.png", "after.png")]
    for path in pair:
        cv2.imwrite(str(path), np.zeros((20, 30, 3), np.uint8))
    refused(make(runs / "stage2", pair), message)


@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        (
            [{"image_id": "a", "caption": "x"}],
            {"a": ["x"], "b": ["y"]},
            "1 of 2 pairs have no prediction",
        ),
        ({"a": "x", "c": "z"}, {"a": ["x"]}, "of no pair of the references, such as 'c'"),
        ([{"image_id": "a"}], {"a": ["x"]}, "row 1 (id a): no caption"),
        ([{"image_id": 1, "caption": "x"}] * 2, {"1": ["x"]}, "two predictions"),
        ({"a": "x"}, [1], "no references"),
        ({"a": "x"}, {"a": []}, "not one reference caption"),
        ({}, {}, "not one reference caption"),
    ],
)
def test_predictions(tmp_path: Path, predictions: object, references: object, message: str) -> None:
    for name, value in (("predictions", predictions), ("references", references)):
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    arguments = [
        part for n in ("predictions", "references") for part in (f"--{n}", tmp_path / f"{n}.json")
    ]
    refused(["evaluate", *arguments], message)


def test_a_folder_a_csv_and_json_lines_of_pairs(
    tmp_path: Path, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Paths are relative to the list; odd names and a byte-order mark do no harm."""
    names = ("vorher é.png", "nach her.png")
    for name in names:
        cv2.imwrite(str(tmp_path / name), np.zeros((20, 30, 3), np.uint8))
    (tmp_path / "pairs.csv").write_text("\ufeffbefore,after\n" + ",".join(names) + "\n")
    row = json.dumps(dict(zip(("before", "after"), names, strict=True)))
    (tmp_path / "pairs.jsonl").write_text(f"{row}\n\n{row}\n")
    for file, count in (("pairs.csv", 1), ("pairs.jsonl", 2)):
        arguments = ["caption", runs / "stage2", "--pairs", tmp_path / file, "--json"]
        cli.main([str(part) for part in arguments], standalone_mode=False)
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(rows) == count
        assert rows[0]["before"].endswith(names[0])


def test_a_damaged_checkpoint(tmp_path: Path, runs: Path) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(runs / "stage2", run)
    model = run / "checkpoints/000002/model.safetensors"
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    images = [tmp_path / "a.png"] * 2
    cv2.imwrite(str(images[0]), np.zeros((20, 30, 3), np.uint8))
    refused(["caption", run, *images], "model.safetensors: damaged")


def test_a_damaged_sample_to_be_captioned(tmp_path: Path, vqgan: Path, runs: Path) -> None:
    path = tmp_path / "train-000000.tar"
    write_shard(path, vqgan, range(2))
    data = path.read_bytes()
    path.write_bytes(data.replace(b"NUMPY", b"XXXXX", 1))
    refused(["evaluate", runs / "stage2", "--shards", path], "train-000000.tar")


def test_one_process_where_the_loss_is_over_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(["vqgan", "--shards", shard, "--out", tmp_path / "run"], "without torchrun")


def test_foreign_files_are_not_procap_s(tmp_path: Path) -> None:
    out = ["--out", tmp_path / "run"]
    save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    refused(["import-procap", tmp_path / "a.safetensors", *out], "no ProCap weights: a are foreign")
    refused(["import-procap", tmp_path / "nowhere.pt", *out], "no such file")
    assert not (tmp_path / "run").exists()


def test_it_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BIN / "cc-train"), "stage1", "--out", str(tmp_path / "run"), "--shards", "no-*.tar"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line.strip()] == [
        "cc-train: no-*.tar: no such file. Check the path, and quote the pattern"
    ]


def test_a_pattern_that_the_shell_has_replaced(tmp_path: Path) -> None:
    done = commands.cc_train("stage1", "--shards", "a-0.tar", "a-1.tar", "--out", tmp_path)
    assert done.returncode == 2
    assert "extra argument (a-1.tar)" in done.stderr
    assert "Quote it: --shards" in done.stderr
