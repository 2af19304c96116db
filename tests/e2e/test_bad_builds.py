"""Users' mistakes with scoring, building and training: one line each, exit code 2, no traceback."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import cv2
import pytest

from cc_prep.errors import UserError
from cc_prep.formats import rejects
from cc_train.cli import cli as cc_train_cli
from pipelines.cli import cli as cc_prep_cli
from tests import weight_factory
from tests.conftest import Command

SIZES = ("--set", "image_size=64", "--set", "interpolate.depth=2")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> Path:
    """Weights, and sequences and scores in `out`."""
    folder = tmp_path_factory.mktemp("bad")
    for step in ("interpolate", "score-frames"):
        done = prepare(step, *arguments(folder, folder / "out", synth_root))
        assert done.returncode == 0, done.stderr
    return folder


def arguments(weights: Path, out: Path, root: Path, *more: str) -> list[object]:
    weight_options = [p for o in weight_factory.settings(weights) for p in ("--set", o)]
    return ["synth", "--root", root, "--out", out, *SIZES, *weight_options, *more]


def refused(cli: click.Group, command_line: list[object], message: str) -> None:
    """The mistake in this process, which is quicker; `main` makes the one line of it."""
    with pytest.raises(UserError, match=re.escape(message)):
        cli.main([str(part) for part in command_line], standalone_mode=False)


def mistaken(done: subprocess.CompletedProcess[str], message: str) -> None:
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, lines


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--set", "interpolate.method=dis"), "interpolate.method: rife → dis"),
        (("--set", "keyframes.k=4"), "3 frames in between"),
        (("--set", "score.weights=nowhere.pt"), "a file is not there: score.weights nowhere.pt"),
        (("--set", "score.wieghts=x"), 'Did you mean "score.weights"?'),
        (("--set", "keyframes.strategy=best"), "keyframes.strategy"),
        (("--split", "dev"), "dev"),
    ],
)
def test_scoring(
    workspace: Path, tmp_path: Path, synth_root: Path, more: tuple[str, str], message: str
) -> None:
    (tmp_path / "sequences").symlink_to(workspace / "out/sequences")
    command_line = arguments(workspace, tmp_path, synth_root, *more)
    refused(cc_prep_cli, ["score-frames", *command_line], message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--set", "image_size=32"), "image_size: 64 → 32"),
        (("--set", "score.intra_layers=1"), "score.intra_layers"),
        (("--set", "keyframes.k=4"), "3 frames in between"),
        (("--set", "tokenize.config=nowhere.yaml"), "nowhere.yaml"),
        (("--from", "nowhere"), "no sequences"),
    ],
)
def test_building(
    workspace: Path, tmp_path: Path, synth_root: Path, more: tuple[str, str], message: str
) -> None:
    command_line = arguments(
        workspace, tmp_path / "new", synth_root, "--from", str(workspace / "out"), *more
    )
    refused(cc_prep_cli, ["build", *command_line], message)
    assert not (tmp_path / "new").exists()


def test_another_format_version(
    workspace: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: a folder of an older format read as one of today's, by any command."""
    shutil.copytree(workspace / "out", tmp_path / "out")
    path = tmp_path / "out/sequences/provenance.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "format_version": record["format_version"] - 1}))
    message = f"reads {record['format_version']}. Run the command again"
    for command in ("interpolate", "score-frames", "build"):
        mistaken(prepare(command, *arguments(workspace, tmp_path / "out", synth_root)), message)
    for command in ("verify", "stats", "report"):
        mistaken(prepare(command, tmp_path / "out"), message)


def test_a_config_is_known_by_its_content_and_weights_by_their_digest(
    tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: tokens of two networks in one folder, and a folder bound to a file's place."""
    before, after, out = tmp_path / "before", tmp_path / "after", tmp_path / "out"
    before.mkdir()
    weight_factory.settings(before)
    params = {"ddconfig": {"resolution": 64, "attn_resolutions": []}, "n_embed": 64}
    (before / "vqgan.yaml").write_text(json.dumps({"model": {"params": params}}))

    def build(folder: Path) -> subprocess.CompletedProcess[str]:
        config = ("--set", f"tokenize.config={folder}/vqgan.yaml", "--split", "val")
        return prepare("build", *arguments(folder, out, synth_root, *config))

    done = build(before)
    assert done.returncode == 0, done.stderr
    before.rename(after)
    done = build(after)
    assert done.returncode == 0, done.stderr
    assert "0 of them in this run" in done.stdout
    record = json.loads((out / "shards/provenance.json").read_text())
    assert record["settings"]["tokenize"]["config"]["ddconfig"]["attn_resolutions"] == []
    assert str(tmp_path) not in json.dumps(record["settings"])
    text = (after / "vqgan.yaml").read_text()
    (after / "vqgan.yaml").write_text(text.replace('"resolution": 64', '"resolution": 128'))
    mistaken(build(after), "other settings (tokenize.config.ddconfig.resolution: 64 → 128)")
    (after / "vqgan.yaml").write_text(text)
    weight_factory.write_vqgan(after / "vqgan-test.safetensors", seed=1)
    mistaken(build(after), "was made with other settings (tokenize.weights: vqgan-test")


def test_nothing_to_score(
    workspace: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    command_line = arguments(workspace, tmp_path, synth_root)
    mistaken(prepare("score-frames", *command_line), "Run: cc-prep interpolate")


def test_foreign_weights(
    workspace: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    weight_factory.settings(workspace)
    swapped = ("--set", f"tokenize.weights={workspace}/clip4idc-test.safetensors")
    command_line = arguments(workspace, tmp_path, synth_root, *swapped)
    mistaken(prepare("build", *command_line), "weights of cc-train vqgan, or vqgan-mini")


def test_scores_of_other_sequences(
    workspace: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: shards whose scores belong to frames that are no more."""
    shutil.copytree(workspace / "out", tmp_path / "out")
    path = tmp_path / "out/sequences/provenance.json"
    record = json.loads(path.read_text())
    record["shards"]["train-000000"]["sha256"] = "0" * 64
    path.write_text(json.dumps(record))
    mistaken(
        prepare("build", *arguments(workspace, tmp_path / "out", synth_root)), "of other sequences"
    )


def test_a_stored_shard_that_changed_ends_the_job(
    workspace: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: scores of frames that are not those that were written, or of a part of them."""
    shutil.copytree(workspace / "out/sequences", tmp_path / "sequences")
    shard = tmp_path / "sequences/train-000000.tar"
    whole = shard.read_bytes()
    at = whole.index(b"IHDR", whole.index(b".f02.png"))
    for damaged in (whole[:at] + b"XXXX" + whole[at + 4 :], whole[: len(whole) // 2]):
        shard.write_bytes(damaged)
        done = prepare("score-frames", *arguments(workspace, tmp_path, synth_root))
        assert done.returncode == 2
        assert "train-000000.tar: is not as it was written" in done.stderr
        assert "Look closer with: cc-prep verify" in done.stderr
        assert "Traceback" not in done.stderr


def test_sizes_that_are_no_whole_tokens(
    workspace: Path, synth_root: Path, tmp_path: Path, prepare: Command
) -> None:
    """A size for all is refused at once; pairs of their own sizes are rejects."""
    command_line = arguments(workspace, tmp_path, synth_root, "--set", "image_size=62")
    mistaken(prepare("build", *command_line), "Set image_size=64")
    root = tmp_path / "root"
    shutil.copytree(synth_root, root)
    for image in root.glob("*images/*_000001.png"):
        picture = cv2.imread(str(image))
        cv2.imwrite(str(image), picture[:62])
    more = ("--set", "image_size=null", "--set", "interpolate.keep_truth=false")
    command_line = arguments(workspace, tmp_path / "out", root, *more, "--max-rejects", "0.5")
    done = prepare("build", *command_line)
    assert done.returncode == 0, done.stderr
    rejected = rejects.read(str(tmp_path / "out/shards"))
    assert {r.id for r in rejected} == {"000001"}
    assert {r.reason for r in rejected} == {"size not divisible"}
    assert "64×62" in rejected[0].message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shards", "nowhere-*.tar"], "no such file"),
        (
            ["--shards", "SHARD", "--set", "loop.learnig_rate=1"],
            'Did you mean "loop.learning_rate"?',
        ),
        (["--shards", "SHARD", "--set", "loop.batch_size=0"], "loop.batch_size"),
        (["--shards", "SHARD", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--shards", "SHARD", "--init", "nowhere.pt"], "nowhere.pt"),
        (["--shards", "SCORES"], "parquet"),
        (["--shards", "SHARD", "--set", "loop.device=cuda"], "torch finds no GPU"),
    ],
)
@pytest.mark.parametrize("kind", ["vqgan", "clip4idc"])
def test_training(
    workspace: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    named = {
        "SHARD": str(workspace / "out/sequences/train-000000.tar"),
        "SCORES": str(workspace / "out/scores/train-000000.parquet"),
    }
    command_line = [named.get(a, a) for a in arguments]
    refused(cc_train_cli, [kind, "--out", str(tmp_path / "run"), *command_line], message)
    assert not (tmp_path / "run").exists()
