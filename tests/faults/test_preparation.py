"""Preparation under fire: whatever is killed, and whenever, a resumed job writes the same bytes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from cc_prep.formats import rejects, sequences
from tests.conftest import Command, digests, image_after, in_order, last_image
from tests.faults import processes, tries

FEW = 1
# Workers that cross-fade need no torch, so they start at once; many tries take the network.
JOB = (
    *("--set", "shards.pairs_per_shard=2", "--set", "interpolate.threads=1"),
    *(
        ("--set", "interpolate.method=crossfade", "--set", "interpolate.depth=2")
        if tries(FEW) == FEW
        else ("--set", "interpolate.depth=3", "--set", "image_size=96")
    ),
)
VICTIMS = ("driver", "actor", "session", "raylet", "pause", "agent", "SIGTERM")
# What a full disk does to a worker, and the lock of a folder to a job, needs no Ray; `make faults`
# has both with Ray.
START_ALONE = processes.start_alone if tries(FEW) == FEW else processes.start
START, WORK = 10.0, 1.0  # seconds that a job takes to its first pair, and for its shards


def arguments(root: Path, out: Path, workers: int = 2) -> tuple[object, ...]:
    return ("interpolate", "synth", "--root", root, "--out", out, "--workers", workers, *JOB)


def shards(out: Path) -> int:
    return len(list(out.glob("sequences/*.tar")))


def begun(out: Path) -> bool:
    return bool(list(out.glob("sequences/.state/*.journal.json")))


def resumed_is_undisturbed(prepare: Command, root: Path, out: Path, undisturbed: Path) -> None:
    """Resumes the job as its users would, with another number of workers, and compares."""
    done = prepare(*arguments(root, out, 1), "--retry-rejects")
    assert done.returncode == 0, done.stderr
    assert digests(out, "sequences") == digests(undisturbed, "sequences")
    assert processes.leftovers(out) == []
    verified = prepare("verify", out)
    assert verified.returncode == 0, verified.stdout
    counted = json.loads(prepare("status", out, "--json").stdout)["pairs"]
    assert counted == {"planned": 12, "done": 12, "rejected": 0, "left": 0}


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command
) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    done = prepare(*arguments(synth_root, out))
    assert done.returncode == 0, done.stderr
    assert len(digests(out, "sequences")) == 7
    return out


def blows(job: subprocess.Popen[str], victim: str, rng: random.Random, longest: float) -> int:
    """Strikes once, an actor up to three times, each time as soon as the victim is there.

    How many blows hit, before the job ended.
    """
    hits = 0
    for _ in range(rng.choice((1, 1, 2, 3)) if victim == "actor" else 1):
        time.sleep(rng.uniform(0, longest))
        hits += processes.wait_for(lambda: processes.strike(job, victim), job)
    return hits


def test_random_kills(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """A blow or several at random moments, each to a random victim.

    The tests kill a driver alone: `test_engine_faults.py` kills workers, and `make faults` all.
    The worker of the last pair is held until then, so that no job is over before the blow.
    """
    struck: Counter[str] = Counter()
    orphaned, root = 0, Path(shutil.copytree(synth_root, tmp_path / "root"))
    held = last_image(root, undisturbed)
    for number in range(tries(FEW)):
        rng, out = random.Random(number), tmp_path / str(number)
        victim, moment = VICTIMS[number % len(VICTIMS)], (number + 1) % 4
        # From the start on; from the first pair; and half of all between finished shards.
        begins = (lambda: True, lambda out=out: begun(out), *[lambda out=out: shards(out)] * 2)
        with processes.held(held) as hold:
            job = processes.start(*arguments(root, out), env=hold.environment)
            assert processes.wait_for(begins[moment], job), processes.ended(job)
            orphans = processes.actors(job) if victim == "driver" else []
            struck[victim] += blows(job, victim, rng, WORK if moment else START)
        # Keeps away: workers that hold memory after their driver was killed.
        assert psutil.wait_procs(orphans, timeout=120)[1] == []
        orphaned += len(orphans)
        output = processes.ended(job)
        print(
            f"{number}: {victim}, {shards(out)} shards then, code {job.returncode}: {output[-90:]}"
        )
        assert "Traceback" not in output
        # Keeps away: a job that ends by itself, as it seems, after its node manager died.
        if job.returncode == 1:
            assert output.splitlines()[-1].startswith("cc-prep: "), output
            assert "ame command" in output.splitlines()[-1], output
        resumed_is_undisturbed(prepare, root, out, undisturbed)
        shutil.rmtree(out)
    print(dict(struck), orphaned, "orphans")
    for victim in VICTIMS[: tries(FEW)]:
        assert struck[victim], f"{victim} was never hit"
    assert orphaned or not struck["driver"], "no driver had a worker when it was killed"


@pytest.fixture
def disk(tmp_path: Path) -> object:
    """A disk of 100 MB of its own, for whoever may mount one."""
    with processes.mounted(tmp_path / "disk", 100) as path:
        yield path


def test_a_disk_that_fills_up(
    disk: Path, undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    root = Path(shutil.copytree(synth_root, tmp_path / "root"))
    with processes.held(last_image(root, undisturbed)) as hold:
        job = START_ALONE(*arguments(root, disk / "out"), env=hold.environment)
        assert processes.wait_for(lambda: shards(disk / "out"), job)
        processes.fill(disk / "filler")
    output = processes.ended(job)
    assert job.returncode == 1
    assert "disk is full" in output or "No space left" in output
    assert "Traceback" not in output
    assert shards(disk / "out") < 6
    (disk / "filler").unlink()
    resumed_is_undisturbed(prepare, root, disk / "out", undisturbed)


def test_an_output_that_becomes_read_only(
    disk: Path, undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    refused = prepare(*arguments(synth_root, Path("/sys/out")))
    assert refused.returncode == 2
    assert "cannot write there" in refused.stderr
    root = Path(shutil.copytree(synth_root, tmp_path / "root"))
    with processes.held(last_image(root, undisturbed)) as hold:
        job = processes.start_alone(*arguments(root, disk / "out"), env=hold.environment)
        # From then on it opens no file for writing, of which one would keep the disk as it is.
        assert processes.wait_for(hold.is_reached, job), processes.ended(job)
        assert shards(disk / "out")
        processes.remount(disk, "ro")
    output = processes.ended(job)
    assert job.returncode in (1, 2)
    assert "ead-only file system" in output
    assert "Traceback" not in output
    processes.remount(disk, "rw")
    resumed_is_undisturbed(prepare, root, disk / "out", undisturbed)


def test_inputs_that_change_under_way(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """What was unreadable for a time is a reject, and no more once it is there again.

    The only worker is held at the first pair of its second shard, while the images of all
    shards after that one are damaged.
    """
    root, out = tmp_path / "root", tmp_path / "out"
    shutil.copytree(synth_root, root)
    _, second, *others = [
        [dict(pair.meta) for pair in sequences.read(str(file))] for file in in_order(undisturbed)
    ]
    with processes.held(image_after(root, second[0])) as hold:
        job = processes.start_alone(*arguments(root, out, 1), env=hold.environment)
        assert processes.wait_for(lambda: shards(out) == 1, job), processes.ended(job)
        images = [image_after(root, meta) for pairs in others for meta in pairs]
        damage(images)
    output = processes.ended(job)
    assert job.returncode == 1
    assert "Traceback" not in output
    rejected = rejects.read(str(out / "sequences"))
    assert {r.reason for r in rejected} == {"missing image", "unreadable image"}
    assert len(rejected) == sum(number % 4 < 3 for number in range(len(images)))
    for image in images:
        shutil.copy(synth_root / image.relative_to(root), image)
    resumed_is_undisturbed(prepare, root, out, undisturbed)


def damage(images: list[Path]) -> None:
    """Removes, truncates and overwrites a quarter of the images each."""
    for number, image in enumerate(images):
        data = image.read_bytes()
        if number % 4 == 0:
            image.unlink()
        elif number % 4 < 3:
            image.write_bytes(data[: len(data) // 2] if number % 4 == 1 else b"\xff" * len(data))


# The time of day leaps by days, forth and back, every second. It pickles as the true one.
JUMPING = """
import time
true = time.time
def jumping():
    return true() + 172800 * ((int(true()) % 3) - 1)
jumping.__module__, jumping.__qualname__ = "time", "time"
time.time = jumping
"""
JUMPS = "import time; t = time.time(); time.sleep(1.1); assert abs(time.time() - t) > 1000"


def test_of_two_jobs_started_together_one_works(
    undisturbed: Path, tmp_path: Path, synth_root: Path
) -> None:
    """And its bytes are the same, though its clocks jump (in `make faults` all processes' clocks).

    It is held at its last pair until the other one has ended.
    """
    for number in range(tries(1)):
        out = tmp_path / str(number)
        with processes.held(last_image(synth_root, undisturbed), at_start=JUMPING) as hold:
            assert processes.run([sys.executable, "-c", JUMPS], hold.environment) == 0
            jobs = [
                START_ALONE(*arguments(synth_root, out), env=hold.environment) for _ in range(2)
            ]
            processes.wait_for(lambda jobs=jobs: jobs[1].poll() is not None, jobs[0])
        outputs = [processes.ended(job) for job in jobs]
        assert sorted(job.returncode for job in jobs) == [0, 2], outputs
        [works] = [job for job in jobs if job.returncode == 0]
        [refused] = [text for job, text in zip(jobs, outputs, strict=True) if job.returncode == 2]
        assert f"process {works.pid} on" in refused
        assert digests(out, "sequences") == digests(undisturbed, "sequences")
        shutil.rmtree(out)
