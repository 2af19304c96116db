"""`cc-prep changes`: same bytes from pairs or sequences, by any workers, killed or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cc_prep.formats import changes
from tests.conftest import Command, digests, image_after
from tests.faults import processes

SMALL = ("--set", "shards.pairs_per_shard=2", "--set", "image_size=64")


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command
) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    done = prepare("changes", "synth", "--root", synth_root, "--out", out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert len(digests(out, "changes")) == 7
    return out


def test_two_workers_on_sequences_give_the_same_bytes(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: masks that depend on who found them, or on which copy of the images was read."""
    plain = ("--set", "interpolate.method=crossfade", "--set", "interpolate.depth=1", *SMALL)
    done = prepare("interpolate", "synth", "--root", synth_root, "--out", tmp_path, *plain)
    assert done.returncode == 0, done.stderr
    done = prepare("changes", "synth", "--root", "/nowhere", "--out", tmp_path, *SMALL, workers=2)
    assert done.returncode == 0, done.stderr
    assert digests(tmp_path, "changes") == digests(undisturbed, "changes")
    assert prepare("verify", tmp_path).returncode == 0
    figures = json.loads(prepare("stats", tmp_path, "--json").stdout)
    assert figures["changes"] == 12
    against = figures["found against true masks"]
    assert against["pairs"] == 6
    assert 0.2 < against["IoU of changed pairs"] <= 1
    other = prepare("changes", "synth", "--out", tmp_path, *SMALL, "--set", "changes.delta=30")
    assert other.returncode == 2
    assert "changes.delta: 20.0 → 30" in other.stderr


def test_killed_and_resumed(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """Keeps away: half a shard that is taken for a whole one.

    The worker is held at the last pair of the second shard. SIGKILL
    comes there, while the first shard is done.
    """
    root = Path(shutil.copytree(synth_root, tmp_path / "synth"))
    out = tmp_path / "out"
    arguments = ["changes", "synth", "--root", root, "--out", out, *SMALL]
    [*_, pair] = changes.read(str(undisturbed / "changes/train-000001.tar"))
    state = out / "changes/.state"
    with processes.held(image_after(root, pair.meta)) as hold:
        processes.kill_when(
            lambda: (
                (state / "train-000000.done.json").exists()
                and pair.key in processes.in_flight(state / "train-000001.journal.json")
            ),
            *(*arguments, "--workers", 1),
            env=hold.environment,
        )
    assert (out / "changes/train-000000.tar").exists()
    assert not (out / "changes/train-000001.tar").exists()
    done = prepare(*arguments)
    assert done.returncode == 0, done.stderr
    assert digests(out, "changes") == digests(undisturbed, "changes")
