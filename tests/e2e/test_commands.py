"""Every command has help with an example; videos and weights can be had."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cc_prep.datasets import sample_videos
from tests import commands
from tests.conftest import BIN, ROOT, Command

COMMANDS = [
    "init",
    "split",
    "references",
    "synth",
    "videos",
    "inspect",
    "interpolate",
    "verify",
    "stats",
    "report",
    "status",
    "weights",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = commands.cc_prep(command, "--help")
    assert done.returncode == 0
    assert f"cc-prep {command}" in done.stdout.split("Example:")[1]


def test_help_lists_all(cc_prep: Command) -> None:
    output = cc_prep("--help").stdout
    assert all(f"\n  {command} " in output for command in COMMANDS)
    done = subprocess.run([BIN / "cc-train", "--help"], capture_output=True, text=True, check=True)
    assert "cc-train" in done.stdout


def test_make_help_lists_every_target() -> None:
    output = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    for target in ("setup", "demo", "test", "lint", "bench", "interpolate"):
        assert f"\n{target} " in f"\n{output}"


def test_weights(cc_prep: Command, rife_weights: dict) -> None:
    listed = cc_prep("weights")
    assert "rife-v4.0" in listed.stdout
    assert "MIT" in listed.stdout
    assert cc_prep("weights", "verify", "rife-v4.0").returncode == 0


def test_real_videos_to_sequences(tmp_path: Path, cc_prep: Command) -> None:
    done = cc_prep("videos", tmp_path / "videos")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(sample_videos.VIDEOS) == 3
    assert cc_prep("videos", tmp_path / "videos").returncode == 0
    interpolated = cc_prep(
        "interpolate", "video", "--root", tmp_path / "videos", "--out", tmp_path / "out",
        "--set", "interpolate.method=dis", "--limit", 4, "--json",
    )  # fmt: skip
    assert interpolated.returncode == 0, interpolated.stderr
    assert json.loads(interpolated.stdout)["samples"] == 4
    stats = json.loads(cc_prep("stats", tmp_path / "out", "--json").stdout)
    assert stats["against true frames"]["PSNR"]["frames"] == 28
