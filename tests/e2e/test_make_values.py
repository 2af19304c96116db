"""What is given to `make` reaches the commands whole; the programs here only log their words."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import outside_make
from tests.conftest import ROOT

SCRIPT = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
"""
QUOTED = "--set 'splits=[train]' --set 'data.note=two words'"
WORDS = ["--set", "splits=[train]", "--set", "data.note=two words"]


def commands(folder: Path, *arguments: str) -> list[list[str]]:
    """The words of each command that a target runs."""
    log = folder / "words.jsonl"
    for name in ("cc-prep", "cc-train", "python"):
        (folder / name).write_text(SCRIPT.format(python=sys.executable, log=str(log)))
        (folder / name).chmod(0o755)
    environment = outside_make()
    done = subprocess.run(
        ["make", "-C", str(ROOT), "SETUP=", f"BIN={folder}", *arguments],
        capture_output=True, text=True, timeout=300, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in log.read_text().splitlines()]


def holds(words: list[str], part: list[str]) -> bool:
    """Whether the part is among the words, in one piece."""
    return any(words[i : i + len(part)] == part for i in range(len(words)))


@pytest.mark.parametrize("target", ["pair", "scorer", "chain", "mllm"])
def test_places_with_spaces_and_quoted_settings(tmp_path: Path, target: str) -> None:
    """Keeps away: half a path, and a syntax error of the shell for a setting in quotes."""
    out = str(tmp_path / "an out")
    values = ("DATASET=spot", f"OUT={out}", f"PREPARE={QUOTED}", f"ARGS={QUOTED}")
    *preparations, verify, training = commands(tmp_path, target, *values)
    assert {words[0] for words in preparations} >= {"build"}
    assert all(holds(words, WORDS) and holds(words, ["--out", out]) for words in preparations)
    assert verify == ["verify", f"{out}/shards"]
    assert training[0] == target
    assert holds(training, ["--out", f"{out}/{target}"])
    assert holds(training, WORDS)
    assert holds(training, ["--shards", f"{out}/shards/train-*.tar"])


def test_a_manifest_with_a_space_in_its_name(tmp_path: Path) -> None:
    """Keeps away: half a name, and the other half as a further argument."""
    [words] = commands(tmp_path, "interpolate", "DATASET=my data.yaml")
    assert words == ["interpolate", "my data.yaml", "--out", "out/my data"]


@pytest.mark.parametrize(("system", "trainings"), [("procap", 2), ("scorer", 1)])
def test_a_row_of_the_zoo(tmp_path: Path, system: str, trainings: int) -> None:
    """Keeps away: the same of `make zoo-row`, whose recipe puts its settings in by itself."""
    out, rows = str(tmp_path / "an out"), str(tmp_path / "all rows")
    build, *others = commands(
        tmp_path, "zoo-row", "DATASET=spot", f"SYSTEM={system}", f"OUT={out}", f"ROWS={rows}",
        f"PREPARE={QUOTED}", f"TRAIN={QUOTED}",
    )  # fmt: skip
    assert build[:4] == ["build", "spot", "--out", out]
    assert holds(build, WORDS)
    assert holds(build, ["--set", "keyframes.k=0"]) == (system == "scorer")
    for training in others[:trainings]:
        assert holds(training, ["--config", "spot"])
        assert holds(training, WORDS)
        assert training[-2:] == ["--valid", f"{out}/shards/val-*.tar"]
    assert others[trainings][0] == "evaluate"
    assert [words[:3] for words in others[trainings + 1 :]] == [
        ["-m", "tools.zoo", "add"], ["-m", "tools.zoo", "page"],
    ]  # fmt: skip
    assert holds(others[-1], ["--zoo", rows])
    published = others[-2][others[-2].index("--command") + 1]
    assert shlex.split(published) == [
        "make", "zoo-row", "DATASET=spot", f"SYSTEM={system}",
        f"PREPARE={QUOTED}", f"TRAIN={QUOTED}",
    ]  # fmt: skip


def test_shards_of_one_split_are_no_whole(tmp_path: Path) -> None:
    """Keeps away: a training without a validation, after shards of `--split train` alone."""
    shards = tmp_path / "out/shards"
    shards.mkdir(parents=True)
    (shards / "provenance.json").write_text('{\n "complete": true\n}')
    (shards / "train-000000.tar").touch()
    value = f"OUT={tmp_path / 'out'}"
    names = [words[0] for words in commands(tmp_path, "scorer", value)]
    assert names == ["build", "verify", "scorer"]
    (shards / "val-000000.tar").touch()
    (tmp_path / "words.jsonl").unlink()
    assert [words[0] for words in commands(tmp_path, "scorer", value)] == ["scorer"]
