"""`cc-prep interpolate` in real processes: same bytes for any workers, killed or not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Command, digests, last_image
from tests.faults import processes

SMALL = (
    "--set",
    "shards.pairs_per_shard=2",
    "--set",
    "image_size=64",
    "--set",
    "interpolate.depth=2",
)


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory: pytest.TempPathFactory, synth_root: Path, prepare: Command
) -> Path:
    out = tmp_path_factory.mktemp("one") / "out"
    done = prepare("interpolate", "synth", "--root", synth_root, "--out", out, *SMALL)
    assert done.returncode == 0, done.stderr
    assert len(digests(out, "sequences")) == 7
    return out


def test_two_workers_ended_by_sigterm_and_resumed_by_one(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    """The worker of the last pair is held, so that the signal comes when all else is made."""
    root, out = Path(shutil.copytree(synth_root, tmp_path / "synth")), tmp_path / "out"
    arguments = ["interpolate", "synth", "--root", root, "--out", out]

    def shards(folder: Path) -> int:
        return len(list(folder.glob("sequences/*.tar")))

    all_but_one = shards(undisturbed) - 1
    with processes.held(last_image(root, undisturbed)) as hold:
        job = processes.start(*arguments, "--workers", 2, *SMALL, env=hold.environment)
        is_begun = processes.wait_for(lambda: shards(out) == all_but_one, job)
        assert is_begun, processes.ended(job)
        job.terminate()
        output = processes.ended(job)
    assert job.returncode == 1
    assert "the same command resumes" in output
    assert "Traceback" not in output
    made, expected = digests(out, "sequences"), digests(undisturbed, "sequences")
    assert made.items() < expected.items()
    done = prepare(*arguments, *SMALL)
    assert done.returncode == 0, done.stderr
    assert digests(out, "sequences") == expected


def test_a_larger_limit_extends_and_other_settings_are_refused(
    undisturbed: Path, tmp_path: Path, synth_root: Path, prepare: Command
) -> None:
    arguments = ["interpolate", "synth", "--root", synth_root, "--out", tmp_path, *SMALL]
    assert prepare(*arguments, "--limit", 3).returncode == 0
    smaller = prepare(*arguments, "--limit", 1)
    assert smaller.returncode == 2
    assert "larger --limit" in smaller.stderr
    other = prepare(*arguments, "--set", "interpolate.codec=jpg")
    assert other.returncode == 2
    assert "interpolate.codec: png → jpg" in other.stderr
    assert prepare(*arguments).returncode == 0
    assert digests(tmp_path, "sequences") == digests(undisturbed, "sequences")
