"""The same bytes on other machines: workers, cores, threads, locale, time zone, hashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import small_weights
from tests.behaviour.test_build_is_exact import digests
from tests.conftest import Command
from tests.faults import processes

PLACES = {
    "one core, plain C": (
        {"OMP_NUM_THREADS": "1", "LC_ALL": "C", "TZ": "America/St_Johns", "PYTHONHASHSEED": "0"},
        1,
        {0},
    ),
    "another place": (
        {
            "OMP_NUM_THREADS": "7", "TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8",
            "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "12345", "PYTHONUTF8": "0",
        },
        2,
        None,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory, synth_root: Path) -> list[str]:
    given = [
        *small_weights.settings(tmp_path_factory.mktemp("weights")), "shards.pairs_per_shard=4",
        "image_size=64", "interpolate.depth=2",
    ]  # fmt: skip
    return ["--root", str(synth_root), *(part for g in given for part in ("--set", g))]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, options: list[str], prep: Command) -> Path:
    out = tmp_path_factory.mktemp("here") / "out"
    done = prep("build", "synth", "--out", out, "--workers", 1, *options)
    assert done.returncode == 0, done.stderr
    return out


@pytest.mark.parametrize("place", PLACES)
def test_elsewhere(tmp_path: Path, here: Path, options: list[str], place: str) -> None:
    """RIFE, CLIP4IDC and VQGAN in real processes that find another machine around them."""
    words, workers, cores = PLACES[place]
    job = processes.start(
        "build", "synth", "--out", tmp_path / "out", "--workers", workers, *options,
        env={**os.environ, **words}, cwd=tmp_path,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )  # fmt: skip
    said = processes.ended(job)
    assert job.returncode == 0, said
    assert digests(tmp_path / "out") == digests(here)
