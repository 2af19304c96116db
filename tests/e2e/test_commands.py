"""Every command has help with an example; videos and weights can be had."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cc_prep.datasets import sample_videos
from cc_train import Captioner
from tests import commands
from tests.conftest import BIN, ROOT, Command

# What other targets ask for, which nobody calls by name.
UNLISTED = {"browser", "java"}
GROUPS = {"cc-prep": "pipelines.cli", "cc-train": "cc_train.cli"}


def leaves(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of all commands below a group that are no groups themselves."""
    context = click.Context(group)
    for name in group.list_commands(context):
        if name == "toy":  # a system of another test, registered in the same process
            continue
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, *path, name)
        else:
            yield (*path, name)


@pytest.mark.parametrize("program", GROUPS)
def test_help_has_an_example(program: str) -> None:
    """Keeps away: a command that is found in the list of all and then not understood."""
    module = importlib.import_module(GROUPS[program])
    words = [*leaves(module.cli)]
    assert len(words) > 15
    for command in words:
        done = commands.in_process(module.main, *command, "--help")
        assert done.returncode == 0, command
        assert " ".join((program, *command)) in done.stdout.partition("Example")[2], command


@pytest.mark.parametrize("program", GROUPS)
def test_help_lists_all(program: str) -> None:
    output = subprocess.run([BIN / program, "--help"], capture_output=True, text=True, check=True)
    for first, *_ in leaves(importlib.import_module(GROUPS[program]).cli):
        assert f"\n  {first} " in output.stdout
    assert "..." not in output.stdout.partition("Options:")[2], "a sentence is cut"


def test_make_help_lists_every_target() -> None:
    output = subprocess.run(
        ["make", "-s", "-C", str(ROOT), "help"], capture_output=True, text=True, check=True
    ).stdout
    text = (ROOT / "Makefile").read_text().replace("\\\n", "")
    targets = {*text.partition(".PHONY:")[2].splitlines()[0].split()}
    assert len(targets) > 20
    for target in targets - UNLISTED:
        assert re.search(rf"^{target} ", output, re.MULTILINE), target


def test_weights(cc_prep: Command, rife_weights: dict) -> None:
    listed = cc_prep("weights")
    assert "rife-v4.0" in listed.stdout
    assert "MIT" in listed.stdout
    assert cc_prep("weights", "verify", "rife-v4.0").returncode == 0


def test_real_videos_to_sequences(tmp_path: Path, cc_prep: Command, prepare: Command) -> None:
    done = cc_prep("videos", tmp_path / "videos")
    assert done.returncode == 0, done.stderr
    *videos, before, after = map(Path, done.stdout.splitlines())
    assert len(videos) == len(sample_videos.VIDEOS) == 3
    said = Captioner.from_pretrained("photos-mini")(before, after)
    assert "a car disappeared" in said.text, "the last picture of the demo"
    assert prepare("videos", tmp_path / "videos").returncode == 0
    interpolated = prepare(
        "interpolate", "video", "--root", tmp_path / "videos", "--out", tmp_path / "out",
        "--set", "interpolate.method=dis", "--limit", 4, "--json",
    )  # fmt: skip
    assert interpolated.returncode == 0, interpolated.stderr
    assert json.loads(interpolated.stdout)["samples"] == 4
    stats = json.loads(prepare("stats", tmp_path / "out", "--json").stdout)
    assert stats["against true frames"]["PSNR"]["frames"] == 28
