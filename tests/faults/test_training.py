"""Training under fire: whatever dies, and whenever, the same command goes on to the same end."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cc_prep.formats import training_shards
from cc_train.data.stream import Source
from cc_train.runs import checkpoints
from cc_train.training.trainer import Trainer
from tests import run_factory
from tests.faults import processes, tries


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, weights: Path, shards: str) -> dict[str, Path]:
    """A finished run of either stage."""
    folder = tmp_path_factory.mktemp("whole")
    for kind, more in (("stage1", ()), ("stage2", ("--init", str(folder / "stage1")))):
        done = run_factory.train(kind, weights, shards, folder / kind, *more)
        assert done.returncode == 0, done.stderr
    return {kind: folder / kind for kind in ("stage1", "stage2")}


def checkpointed(run: Path, step: int = 2) -> bool:
    return (run / f"checkpoints/{step:06d}").exists()


def writing(run: Path) -> bool:
    return any((run / "checkpoints").glob(".*.tmp"))


def dies(job: processes.Job, run: Path, moment: str, rng: random.Random) -> bool:
    """Kills a training at a moment; whether it was still there."""
    if moment == "while a checkpoint is written":
        for _ in range(rng.randint(1, 3)):
            processes.wait_for(lambda: writing(run), job, 0.01)
            # Until this one is done, so that another is waited for.
            processes.wait_for(lambda: not writing(run) or rng.random() < 0.05, job, 0.01)
    else:
        step = rng.randint(0, 4)  # of eight; before the first one, there are the settings
        processes.wait_for(
            lambda: (
                (run / "settings.json").exists() and max(checkpoints.steps(run), default=0) >= step
            ),
            job,
            0.01,
        )
        time.sleep(rng.uniform(0, 0.1))
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
    if job.poll() is not None:
        return False
    os.killpg(job.pid, number)
    return True


# The tests take the first; `make faults` all.
KILLED = [("stage2", 2), ("stage1", 0), ("stage1", 2), ("stage2", 0)]


@pytest.mark.parametrize(("kind", "workers"), KILLED[: tries(1)])
def test_random_kills(
    tmp_path: Path, weights: Path, shards: str, whole: dict[str, Path], kind: str, workers: int
) -> None:
    """At random steps and while a checkpoint is written, with and without loader workers."""
    struck: Counter[str] = Counter()
    for number in range(tries(1)):
        rng, run = random.Random(f"{number} {kind} {workers}"), tmp_path / str(number)
        moment = ("at random", "while a checkpoint is written")[(number + workers // 2) % 2]
        more = ["--init", str(whole["stage1"])] if kind == "stage2" else []
        more += ["--set", f"loop.loader_workers={workers}", "--set", "loop.checkpoint_every=1"]
        arguments = run_factory.command(kind, weights, shards, run, *more)
        job = processes.Training(*arguments)
        struck[moment] += dies(job, run, moment, rng)
        output = processes.ended(job)
        assert "Traceback" not in output
        done = run_factory.train(kind, weights, shards, run, *more)
        assert done.returncode == 0, done.stderr
        assert run_factory.log(run) == run_factory.log(whole[kind])
        assert tensors(run) == tensors(whole[kind])
        assert not writing(run)
        shutil.rmtree(run)
    print(kind, workers, dict(struck))
    assert struck.total() > 0


def tensors(run: Path) -> bytes:
    """A model's bytes without the file's metadata, where the settings stand."""
    data = run_factory.model(run)
    return data[8 + int.from_bytes(data[:8], "little") :]


def cut(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 3)


def remove(shard: Path) -> None:
    shard.unlink()


def replace(shard: Path) -> None:
    other = next(p for p in sorted(shard.parent.glob("*.tar")) if p != shard)
    shutil.copy(other, shard)


@pytest.mark.parametrize(
    ("harm", "allowed"),
    [(cut, 0.01), (remove, 0.01), (replace, 0.01), (remove, 0.9), (replace, 0.9)],
)
def test_a_shard_that_goes_bad_in_the_middle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    weights: Path,
    shards: str,
    harm: Callable[[Path], None],
    allowed: float,
) -> None:
    """It ends the run with one of its samples and its name, or is counted and left out where the
    user says so."""
    mine, run = tmp_path / "shards", tmp_path / "run"
    shutil.copytree(Path(shards).parent, mine)
    shard, save = mine / "train-000000.tar", Trainer.save

    def save_and_harm(trainer: Trainer, step: int, source: Source) -> None:
        save(trainer, step, source)
        if step == 2:
            harm(shard)

    monkeypatch.setattr(Trainer, "save", save_and_harm)
    done = run_factory.train(
        "stage1", weights, f"{mine}/*.tar", run,
        "--set", f"stream.skip_bad={allowed}", "--steps", "16",
    )  # fmt: skip
    assert (
        not shard.exists() or shard.read_bytes() != Path(shards).with_name(shard.name).read_bytes()
    )
    keys = {one.key for one in training_shards.read(str(Path(shards).with_name(shard.name)))}
    if allowed < 0.1:
        assert done.returncode == 1, done.stderr
        assert "samples cannot be read, the last is " in done.stderr
        assert any(f" {key} of {shard}: check the shards with" in done.stderr for key in keys)
        assert "stream.skip_bad" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    skipped = checkpoints.read_state(run, 16)["stream"]["skipped"]
    assert skipped
    assert set(skipped) <= keys


ELASTIC = ("--set", "loop.device=cpu", "--set", "loop.global_batch_size=4")


def two_ranks(
    run: Path, weights: Path, shards: str, *more: str
) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A training of two ranks that has a checkpoint, and its second rank."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
        "-m", "cc_train", *run_factory.command("stage1", weights, shards, run), *ELASTIC, *more,
        "--steps", "2000",
    ]  # fmt: skip
    job = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert processes.wait_for(lambda: checkpointed(run), job), processes.ended(job)
    ranks = [p for p in psutil.Process(job.pid).children() if "cc_train" in p.cmdline()]
    assert len(ranks) == 2
    return job, next(p for p in ranks if p.environ()["RANK"] == "1")


@pytest.mark.skipif(tries(1) == 1, reason="test_distributed.py has it; here `make faults` alone")
def test_a_rank_meets_an_error_of_its_own(tmp_path: Path, weights: Path, shards: str) -> None:
    """The other one names it and ends: here a loader worker of the second rank is killed."""
    more = ("--set", "loop.loader_workers=1")
    job, second = two_ranks(tmp_path / "run", weights, shards, *more)
    assert processes.kill(second.children()) > 0
    output = processes.ended(job)
    assert job.returncode != 0
    assert "rank 0 stopped, since rank 1 met LoaderWorkerDied: a loader worker died" in output


def test_one_of_two_ranks_is_killed(tmp_path: Path, weights: Path, shards: str) -> None:
    """The other one says so and ends at once, and one process goes on."""
    run = tmp_path / "run"
    job, second = two_ranks(run, weights, shards)
    began = time.monotonic()
    second.kill()
    output = processes.ended(job)
    assert time.monotonic() - began < 120
    assert job.returncode != 0
    assert "rank 0: the exchange with the other processes failed, perhaps because one" in output
    steps = checkpoints.steps(run)
    more = (*ELASTIC, "--steps", str(steps[-1] + 2))
    again = run_factory.train("stage1", weights, shards, run, *more)
    assert again.returncode == 0, again.stderr
    assert f"resuming at step {steps[-1]}" in again.stderr


def test_a_loader_worker_is_killed(tmp_path: Path, weights: Path, shards: str) -> None:
    run = tmp_path / "run"
    job = processes.Training(
        *run_factory.command("stage1", weights, shards, run),
        "--set", "loop.loader_workers=2", "--steps", "2000",
    )  # fmt: skip
    assert processes.wait_for(lambda: checkpointed(run), job)
    processes.kill(psutil.Process(job.pid).children()[-1:])
    output = processes.ended(job)
    assert job.returncode == 1
    assert "a loader worker died" in output
    assert "Traceback" not in output


def test_a_loss_that_is_no_number(tmp_path: Path, weights: Path, shards: str) -> None:
    """The run ends, and what was saved before is finite."""
    run = tmp_path / "run"
    done = run_factory.train(
        "stage1", weights, shards, run,
        "--set", "loop.learning_rate=1e30", "--set", "loop.checkpoint_every=1",
    )  # fmt: skip
    assert done.returncode == 1
    assert "lower loop.learning_rate" in done.stderr
    for line in run_factory.log(run):
        assert all(math.isfinite(v) for v in line.values() if isinstance(v, float))
    checkpoint, wrong = checkpoints.read_last(run)
    assert wrong == []
    assert checkpoint is not None
    assert all(t.isfinite().all() for t in checkpoint.training.values() if t.is_floating_point())


def test_a_disk_that_fills_up(
    tmp_path: Path, weights: Path, shards: str, whole: dict[str, Path]
) -> None:
    """No half a checkpoint stays, the one before is good, and the run goes on from it."""
    with processes.mounted(tmp_path / "disk", 200) as disk:
        job = processes.Training(*run_factory.command("stage1", weights, shards, disk / "run"))
        assert processes.wait_for(lambda: checkpointed(disk / "run"), job)
        processes.fill(disk / "filler")
        output = processes.ended(job)
        assert job.returncode == 1, output
        assert "No space left" in output or "cannot write a checkpoint" in output
        assert "Traceback" not in output
        assert not writing(disk / "run")
        (disk / "filler").unlink()
        done = run_factory.train("stage1", weights, shards, disk / "run")
        assert done.returncode == 0, done.stderr
        assert tensors(disk / "run") == tensors(whole["stage1"])
        lines = [json.dumps(line) for line in run_factory.log(disk / "run")]
        assert lines == [json.dumps(line) for line in run_factory.log(whole["stage1"])]
