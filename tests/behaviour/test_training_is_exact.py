"""`cc-train vqgan` and `clip4idc`: processes killed and resumed make the same weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import TCPStore

from cc_prep.storage import sha256
from cc_prep.weights import networks
from cc_train.runs import checkpoints
from tests.commands import Done, cc_train
from tests.conftest import Command
from tests.faults import processes
from tests.run_factory import log

SMALL = {
    "vqgan": [
        "network.multipliers=[1,1,1]", "network.codes=32", "network.latent=8",
        "network.code_width=8", "data.crop=32", "data.validation_frames=2",
        "weights.discriminator_channels=8", "weights.discriminator_start=3",
        "weights.revive_every=2", "loop.ema_decay=0.9",
    ],
    "clip4idc": [
        "network.resolution=32", "network.vision_width=64", "network.vision_layers=2",
        "network.intra_layers=1", "network.text_width=64", "network.text_layers=1",
        "data.mirror=true", "data.shift=2", "data.blur=1.0", "data.held_out=0.3",
    ],
}  # fmt: skip
LOOP = [
    "loop.batch_size=4", "loop.precision=float32", "loop.threads=1", "loop.log_every=1",
    "loop.checkpoint_every=2", "loop.validate_every=4", "loop.warmup_steps=2",
]  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command) -> str:
    out = tmp_path_factory.mktemp("train") / "out"
    done = prepare(
        "interpolate", "synth", "--root", synth_root, "--out", out, "--set", "image_size=48",
        "--set", "interpolate.depth=1", "--set", "interpolate.method=crossfade",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return f"{out}/sequences/*-000000.tar"


def command(kind: str, shards: str, run: Path, *more: str) -> list[str]:
    options = [part for value in (*SMALL[kind], *LOOP) for part in ("--set", value)]
    return [
        kind, "--shards", shards, "--out", str(run),
        "--steps", str(STEPS), *options, *more,
    ]  # fmt: skip


def train(kind: str, shards: str, run: Path, *more: str) -> Done:
    return cc_train(*command(kind, shards, run, *more))


@pytest.fixture(scope="module", params=["vqgan", "clip4idc"])
def undisturbed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shards: str
) -> tuple[str, Path]:
    run = tmp_path_factory.mktemp(request.param) / "run"
    done = train(request.param, shards, run)
    assert done.returncode == 0, done.stderr
    return request.param, run


def test_what_a_run_leaves(undisturbed: tuple[str, Path]) -> None:
    kind, run = undisturbed
    there = sorted(path.name for path in run.iterdir())
    pictures = ["pictures"] if kind == "vqgan" else []
    settings = ["settings.json", "tensorboard", "training_keys.txt"]
    assert there == [".lock", "checkpoints", "log.jsonl", *pictures, *settings]
    best = max(  # of equal ones the last
        reversed([line for line in log(run) if line["part"] == "validation"]),
        key=lambda line: line["psnr" if kind == "vqgan" else "recall"],
    )
    steps = [int(path.name) for path in sorted((run / "checkpoints").iterdir())]
    assert steps[-2:] == [6, 8]
    assert best["step"] in steps
    assert list((run / "tensorboard").iterdir())
    # The checkpoint is what the preparation takes.
    model = run / "checkpoints/000008/model.safetensors"
    if kind == "vqgan":
        network, _, unused = networks.vqgan(str(model))
        assert (network.config.codes, unused) == (32, [])
        assert list((run / "pictures").glob("*.png"))
    else:
        network, _ = networks.clip4idc(str(model))
        assert network.config.intra_layers == 1


def test_stopped_and_resumed_gives_the_same_weights(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    kind, whole = undisturbed
    how = signal.SIGKILL if kind == "vqgan" else signal.SIGTERM
    run = tmp_path / "run"
    job = processes.Training(*command(kind, shards, run))
    assert processes.wait_for((run / "checkpoints/000002").exists, job), processes.ended(job)
    os.kill(job.pid, how)
    output = processes.ended(job)
    steps = [int(p.name) for p in (run / "checkpoints").iterdir() if p.name.isdecimal()]
    assert steps
    assert max(steps) < STEPS, "it was not stopped in time"
    if how is signal.SIGTERM:
        assert job.returncode == 1
        assert "the same command resumes from there" in output
    done = train(kind, shards, run)
    assert done.returncode == 0, done.stderr
    assert "resuming at step" in done.stderr
    name = f"checkpoints/{STEPS:06d}/model.safetensors"
    assert (run / name).read_bytes() == (whole / name).read_bytes()
    assert log(run) == log(whole)


def test_other_settings_are_refused(undisturbed: tuple[str, Path], shards: str) -> None:
    kind, run = undisturbed
    done = train(kind, shards, run, "--set", "loop.seed=9")
    assert done.returncode == 2
    assert "loop.seed" in done.stderr
    done = train(kind, shards, run, "--resume", "never")
    assert done.returncode == 2


def test_a_longer_schedule_is_announced(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    """Keeps away: a learning rate that jumps up, and nobody knows why."""
    kind, whole = undisturbed
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    done = train(kind, shards, run, "--steps", str(STEPS + 1))
    assert done.returncode == 0, done.stderr
    assert f"{STEPS} steps became {STEPS + 1}: the learning rate follows" in done.stderr
    assert "steps became" not in train(kind, shards, run, "--steps", str(STEPS + 1)).stderr


def damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_checkpoint_is_passed_over(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str, how: str
) -> None:
    kind, whole = undisturbed
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    file = run / "checkpoints/000008/training.safetensors"
    if how == "flipped":
        damage(file)
    elif how == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    else:
        (run / "checkpoints/000008/state.json").unlink()
    done = train(kind, shards, run)
    assert done.returncode == 0, done.stderr
    assert "passed over: " in done.stderr
    assert "000008" in done.stderr
    assert "resuming at step 6" in done.stderr
    name = "checkpoints/000008/model.safetensors"
    assert (run / name).read_bytes() == (whole / name).read_bytes()


def test_no_whole_checkpoint_is_an_error(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    kind, whole = undisturbed
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for path in (run / "checkpoints").iterdir():
        damage(path / "training.safetensors")
    done = train(kind, shards, run)
    assert done.returncode == 2
    assert "damaged, and no checkpoint before it is whole. Give another --out" in done.stderr
    assert "Traceback" not in done.stderr


def test_training_goes_on_from_other_weights(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    kind, whole = undisturbed
    model = whole / "checkpoints/000008/model.safetensors"
    done = train(
        kind, shards, tmp_path / "run", "--init", str(whole), "--set", "loop.warmup_steps=0"
    )
    assert done.returncode == 0, done.stderr
    start = json.loads((tmp_path / "run/settings.json").read_text())["init"]
    assert start["name"] == whole.name
    other = {"vqgan": "clip4idc", "clip4idc": "vqgan"}[kind]
    refused = train(other, shards, tmp_path / "other", "--init", str(model))
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


def test_an_exported_run_scores_and_tokenises(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    """Half the bytes and fewer words, the same network; the card says what the file does."""
    kind, run = undisturbed
    done = cc_train("export", run, tmp_path / "mine", "--shards", shards)
    assert done.returncode == 0, done.stderr
    file = tmp_path / "mine.safetensors"
    model = run / "checkpoints" / f"{checkpoints.best_step(run)[0]:06d}" / "model.safetensors"
    assert file.stat().st_size < 0.55 * model.stat().st_size
    load = networks.vqgan if kind == "vqgan" else networks.clip4idc
    small, whole = (load(str(path))[0].state_dict() for path in (file, model))
    assert small.keys() == whole.keys()
    assert all(torch.equal(whole[name].half().float(), small[name]) for name in whole)
    card = (tmp_path / "mine.md").read_text()
    assert ("PSNR" if kind == "vqgan" else "R@10") in card
    assert sha256(file) in card


def test_reading_ahead_changes_nothing(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    kind, whole = undisturbed
    done = train(kind, shards, tmp_path / "run", "--set", "loop.loader_workers=2")
    assert done.returncode == 0, done.stderr
    assert log(tmp_path / "run") == log(whole)


@pytest.mark.parametrize("undisturbed", ["clip4idc"], indirect=True)
def test_two_processes_contrast_as_one_with_twice_the_batch(
    undisturbed: tuple[str, Path], tmp_path: Path, shards: str
) -> None:
    """Keeps away: negatives of a process's own pairs only, or gradients that are not gathered."""
    _, whole = undisturbed
    halves = command("clip4idc", shards, tmp_path / "halves", "--set", "loop.batch_size=2")
    # As of torchrun: the one who starts the processes serves the store where they meet.
    store = TCPStore("127.0.0.1", 0, is_master=True)
    ranks = [
        processes.Training(
            *halves, "--set", "loop.device=cpu", RANK=str(rank), LOCAL_RANK=str(rank),
            WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [processes.ended(rank) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    for line, expected in zip(log(tmp_path / "halves"), log(whole), strict=True):
        assert line.pop("part") == expected.pop("part")
        assert line == pytest.approx(expected, abs=2e-4, rel=2e-4)
    name = f"checkpoints/{STEPS:06d}/model.safetensors"
    both = [load_file(run / name) for run in (tmp_path / "halves", whole)]
    for key, tensor in both[0].items():
        torch.testing.assert_close(tensor, both[1][key], atol=1e-4, rtol=1e-3)
