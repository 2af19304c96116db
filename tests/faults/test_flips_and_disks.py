"""Bits that flip in a finished shard, and disks that are too small."""

from __future__ import annotations

import pickle
import random
import shutil
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_train.data import shard_index
from tests.conftest import Command, digests
from tests.faults import processes, tries

FEW_FLIPS, FEW_DISKS = 10, 3
SETTINGS = (
    "splits=[train]", "image_size=64", "interpolate.method=crossfade", "interpolate.depth=1",
    "score.weights=none", "tokenize.weights=none", "keyframes.strategy=uniform", "keyframes.k=1",
    "shards.pairs_per_shard=4",
)  # fmt: skip
BUILD = ("build", "own", *(part for setting in SETTINGS for part in ("--set", setting)))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pairs of noise, which needs more room than a job expects."""
    root, rng = tmp_path_factory.mktemp("noise"), np.random.default_rng(0)
    rows = ["before,after,caption"]
    for number in range(13):
        pixels = rng.integers(0, 256, (64, 64, 3), np.uint8)
        cv2.imwrite(str(root / f"{number}.png"), pixels)
        rows += [f"{number}.png,{number + 1}.png,thing {number} moved"] if number < 12 else []
    (root / "pairs.csv").write_text("\n".join(rows))
    return root


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, root: Path, prepare: Command) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    done = prepare(*BUILD, "--root", root, "--out", out)
    assert done.returncode == 0, done.stderr
    return out


def content(shard: Path) -> list[bytes]:
    """All that a training reads of a shard."""
    return [pickle.dumps(entry.read()) for entry in shard_index.read([str(shard)])]


def test_flips_in_a_finished_shard(undisturbed: Path, tmp_path: Path, prepare: Command) -> None:
    """Keeps away: damage that `verify` calls OK, and samples that a training takes for whole."""
    out = Path(shutil.copytree(undisturbed, tmp_path / "out"))
    shard = out / "shards/train-000001.tar"
    whole, expected, rng = shard.read_bytes(), content(shard), random.Random(0)
    assert content(shard) == expected
    seen: Counter[str] = Counter()
    for _ in range(tries(FEW_FLIPS)):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        shard.write_bytes(data)
        assert prepare("verify", out / "shards").returncode == 1
        try:
            seen["same content" if content(shard) == expected else "other content"] += 1
        except (DamagedShard, UserError):
            seen["refused"] += 1
    print(dict(seen))
    assert seen["other content"] == 0


def test_disks_that_are_too_small(
    undisturbed: Path, root: Path, tmp_path: Path, prepare: Command
) -> None:
    """Keeps away: half a file under its final name, and temporary files on a disk that is full."""
    needed = sum(file.stat().st_size for file in undisturbed.rglob("*") if file.is_file()) / 2**20
    ends: Counter[int] = Counter()
    for number in range(tries(FEW_DISKS)):
        size = random.Random(number).uniform(0.05, 1.3) * needed
        with processes.mounted(tmp_path / str(number), size) as disk:
            command = (*BUILD, "--root", root, "--out", disk / "out")
            done = prepare(*command)
            ends[done.returncode] += 1
            assert "Traceback" not in done.stderr
            if done.returncode:
                assert done.stderr.splitlines()[-1].startswith("cc-prep: ")
                assert processes.leftovers(disk) == []
            processes.enlarge(disk, 100)
            done = prepare(*command)
            assert done.returncode == 0, done.stderr
            assert digests(disk / "out", "shards") == digests(undisturbed, "shards")
            assert processes.leftovers(disk) == []
        (tmp_path / str(number)).rmdir()
    print(dict(ends))
