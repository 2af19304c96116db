"""`cc-prep entities`: same bytes by any workers, killed or not."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from cc_prep.formats import changes, entities
from tests.conftest import Command, image_after
from tests.faults import processes

SMALL = [
    *("image_size=64", "shards.pairs_per_shard=3", "entities.features=lab"),
    "entities.min_count=1",
]
SHARDS = 5  # of 12 pairs; train has more than one


def arguments(command: str, root: Path, out: Path) -> list[str]:
    options = [part for value in SMALL for part in ("--set", value)]
    return [command, "synth", "--root", str(root), "--out", str(out), *options]


def digests(out: Path) -> dict[str, str]:
    """Digests of the shards of both jobs and of the vocabulary."""
    files = [
        file for job in ("region_features", "entities") for file in out.glob(f"{job}/*.parquet")
    ]
    return {
        str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> Path:
    """The scenes in a folder of their own, as one image is taken away for a time."""
    return Path(shutil.copytree(synth_root, tmp_path_factory.mktemp("own") / "synth"))


@pytest.fixture(scope="module")
def found_changes(tmp_path_factory: pytest.TempPathFactory, root: Path, prepare: Command) -> Path:
    """An OUT with found changes alone."""
    out = tmp_path_factory.mktemp("found") / "out"
    done = prepare(*arguments("changes", root, out))
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, root: Path, found_changes: Path, prepare: Command
) -> Path:
    """An OUT of two workers."""
    out = Path(shutil.copytree(found_changes, tmp_path_factory.mktemp("two") / "out"))
    done = prepare(*arguments("entities", root, out), workers=2)
    assert done.returncode == 0, done.stderr
    return out


def test_one_process_gives_the_same_bytes(
    undisturbed: Path, tmp_path: Path, root: Path, found_changes: Path, prepare: Command
) -> None:
    """Keeps away: vectors or phrases that depend on which worker saw which pairs before."""
    out = Path(shutil.copytree(found_changes, tmp_path / "out"))
    done = prepare(*arguments("entities", root, out))
    assert done.returncode == 0, done.stderr
    assert digests(out) == digests(undisturbed)
    assert f"entities/{entities.VOCABULARY}" in digests(out)
    assert len(list(out.glob("region_features/*-0*.parquet"))) == SHARDS
    files = sorted(out.glob("entities/*-0*.parquet"))
    assert len(files) == SHARDS
    rows = [row for file in files for _, row in entities.read_shard(str(file))]
    assert len(rows) == 12
    assert len({tuple(row["phrases"]) for row in rows if row["phrases"]}) > 1, "bytes of nothing"


def test_killed_and_resumed(
    undisturbed: Path, tmp_path: Path, root: Path, found_changes: Path, prepare: Command
) -> None:
    """Keeps away: half a shard that is taken for a whole one, and a vocabulary of a part.

    One worker makes here what two made undisturbed. It is held at a pair of the second shard.
    SIGKILL comes there, while the first shard is done and the journal of the second one names that
    pair.
    """
    out = Path(shutil.copytree(found_changes, tmp_path / "out"))
    [*_, pair] = changes.read(str(out / "changes/train-000001.tar"))
    state = out / "region_features/.state"
    with processes.held(image_after(root, pair.meta)) as hold:
        processes.kill_when(
            lambda: (
                (state / "train-000000.done.json").exists()
                and pair.key in processes.in_flight(state / "train-000001.journal.json")
            ),
            *arguments("entities", root, out),
            *("--workers", 1),
            env=hold.environment,
        )
    assert not list(out.glob("region_features/train-000001.parquet"))
    assert not (out / "entities").exists()
    done = prepare(*arguments("entities", root, out))
    assert done.returncode == 0, done.stderr
    assert digests(out) == digests(undisturbed)


def test_killed_in_the_second_job_and_resumed(
    undisturbed: Path, tmp_path: Path, root: Path, prepare: Command
) -> None:
    """Keeps away: a command that refuses what it was killed at; a vocabulary before all shards.

    The vectors are there. From when the second job has its plan, and before it has a worker, who
    opens their last shard is held. SIGKILL comes there, while all other shards are done.
    """
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    shutil.rmtree(out / "entities")
    state = out / "entities/.state"
    done_first = [f"{split}-{number:06d}" for split, number in
                  (("test", 0), ("train", 0), ("train", 1), ("train", 2))]  # fmt: skip

    def is_held() -> bool:
        if (state / "plan.json").exists():
            hold.begin()
        return (state / "val-000000.journal.json").exists() and all(
            (state / f"{name}.done.json").exists() for name in done_first
        )

    with processes.held(out / "region_features/val-000000.parquet", at_once=False) as hold:
        command = (*arguments("entities", root, out), "--workers", 1)
        processes.kill_when(is_held, *command, env=hold.environment)
    assert not (out / "entities/val-000000.parquet").exists()
    assert not (out / "entities" / entities.VOCABULARY).exists()
    before = {name: (state / f"{name}.done.json").read_bytes() for name in done_first}
    done = prepare(*arguments("entities", root, out))
    assert done.returncode == 0, done.stderr
    assert digests(out) == digests(undisturbed)
    after = {name: (state / f"{name}.done.json").read_bytes() for name in done_first}
    assert after == before, "finished shards were made again"
