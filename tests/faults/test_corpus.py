"""Files of an attacker, given to the commands: a line or a reject, in bounded memory and time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from cc_prep.formats import rejects
from tests import dataset_factory
from tests.conftest import ROOT
from tests.faults import corpus

MAX_ADDRESSES = 16 << 30  # of the process, so that no machine is harmed by what is found
MAX_MB = 1500  # in use: our libraries take 300 to 600
MAX_SECONDS = 60.0  # of a processor; of the clock PATIENCE, since a slow machine is no fault
PATIENCE = 300.0
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
PROGRAM = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({MAX_ADDRESSES}, {MAX_ADDRESSES}))
from tests.commands import without_ray
if sys.argv[0] == "cc-train":
    from cc_train.cli import main
    main()
else:
    from pipelines.cli import main
    with without_ray():
        main()
"""


@dataclass(frozen=True)
class Ended:
    """What a command said, and with which code it ended."""

    code: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        return self.code == 2


def ended(name: str, *arguments: object) -> Ended:
    """Runs a command of ours in a process with bounds, and checks what holds for each of them."""
    program = PROGRAM.replace("sys.argv[0]", repr(name))
    deadline = time.monotonic() + PATIENCE
    with tempfile.TemporaryFile("w+b") as out_file, tempfile.TemporaryFile("w+b") as err_file:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, cwd=ROOT,
        )  # fmt: skip
        while (waited := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"{name} {arguments[0]} hangs")
            time.sleep(0.05)
        process.returncode = code = os.waitstatus_to_exitcode(waited[1])
        out, err = (os.pread(file.fileno(), 10**7, 0).decode() for file in (out_file, err_file))
    usage = waited[2]
    used, took = usage.ru_maxrss >> 10, usage.ru_utime + usage.ru_stime
    said = (err or out).strip()[-150:]
    print(f"{name} {arguments[0]}: code {code}, {took:.0f} s, {used} MB: {said!r}")
    assert "Traceback" not in err, err[-2000:]
    assert code in (0, 1, 2), err[-2000:]
    assert not CONTROL.search(out + err), "control characters reach the terminal"
    assert used < MAX_MB, f"{used} MB"
    assert took < MAX_SECONDS, f"{took:.0f} s"
    if code == 2:
        last = err.rstrip("\n").splitlines()[-1]
        assert last.startswith(f"{name}: "), err
        assert len(last) < 1000
    return Ended(code, out, err)


def own(folder: Path) -> Path:
    """The images of a small data set, without its table."""
    folder.mkdir()
    for number in range(4):
        dataset_factory.image(folder / f"{number}.png", number)
    return folder


def build(root: Path, out: Path) -> Ended:
    settings = ("interpolate.method=crossfade", "interpolate.depth=1", "image_size=64",
                "score.weights=none", "tokenize.weights=none", "keyframes.k=0",
                "splits=[train]")  # fmt: skip
    chosen = [part for setting in settings for part in ("--set", setting)]
    return ended("cc-prep", "build", "own", "--root", root, "--out", out,
                 "--max-rejects", "1", *chosen)  # fmt: skip


@pytest.mark.parametrize("name", corpus.IMAGES)
def test_a_hostile_image_among_good_ones(tmp_path: Path, name: str) -> None:
    """Keeps away: a job, a look at its data or a list that one file stops, ends or makes large."""
    root = own(tmp_path / "data")
    corpus.IMAGES[name](root / "bad.png")
    pairs = [{"id": "bad", "before": "0.png", "after": "bad.png"},
             {"id": "good", "before": "0.png", "after": "1.png"}]  # fmt: skip
    lines = [json.dumps({**pair, "caption": "a thing moved"}) for pair in pairs]
    (root / "pairs.jsonl").write_text("\n".join(lines))
    is_bad = name not in corpus.READ
    seen = ended("cc-prep", "inspect", "own", "--root", root, "--set", "splits=[train]")
    assert seen.code == is_bad
    assert build(root, tmp_path / "out").code == 0
    rejected = [reject.id for reject in rejects.read(str(tmp_path / "out/shards"))]
    assert rejected == ["bad"] * is_bad
    said = ended("cc-train", "caption", "captioner-mini", "--pairs", root / "pairs.jsonl")
    assert said.code == 1  # those that are read have another size than the first image
    assert len(said.out.splitlines()) == 1
    assert "1 of 2 pairs have no caption" in said.err


@pytest.mark.parametrize("name", corpus.TABLES)
def test_a_hostile_table(tmp_path: Path, name: str) -> None:
    """Keeps away: a table of a few bytes that takes all memory; an address that runs code, or ends
    the command for all other pairs."""
    root = own(tmp_path / "data")
    path = root / f"pairs.{name.rpartition('.')[2]}"
    corpus.TABLES[name](path)
    assert ended("cc-prep", "inspect", "own", "--root", root, "--set", "splits=[train]").code in (
        1,
        2,
    )
    assert ended("cc-train", "caption", "captioner-mini", "--pairs", path).code in (1, 2)


@pytest.mark.parametrize("name", corpus.SHARDS)
def test_a_hostile_shard(tmp_path: Path, name: str) -> None:
    """Keeps away: a shard of others that stops or fills who only looks at it."""
    path = tmp_path / "train-000000.tar"
    corpus.SHARDS[name](path)
    assert ended("cc-prep", "verify", tmp_path).code in (1, 2)
    said = ended("cc-train", "caption", "captioner-mini", "--shards", path)
    assert said.code in (1, 2)


def test_names_that_are_patterns_of_millions(tmp_path: Path) -> None:
    """Keeps away: a pattern of 30 letters that is expanded to all its names, 6 GB of them."""
    pattern = f"{tmp_path}/train-{{0..99999999}}.tar"
    said = ended("cc-train", "caption", "captioner-mini", "--shards", pattern)
    assert said.refused


def test_a_root_that_is_a_chain_of_addresses(tmp_path: Path) -> None:
    """Keeps away: code that runs since a manifest's root names a file system of fsspec."""
    text = f"name: x\nlayout: table\nroot: '{corpus.URLS[0]}'\nsplits: [train]\n"
    (tmp_path / "x.yaml").write_text(text)
    assert ended("cc-prep", "inspect", tmp_path / "x.yaml").refused


def test_a_captioner_whose_settings_are_deep(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"settings": "[" * 200_000}}).encode()
    data = len(header).to_bytes(8, "little") + header
    (tmp_path / "model.safetensors").write_bytes(data)
    dataset_factory.image(tmp_path / "a.png")
    image = tmp_path / "a.png"
    assert ended("cc-train", "caption", tmp_path, image, image).refused
