"""Broken images end in the rejects and all else is written; mistakes get one line and code 2."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep.formats import rejects, sequences
from tests.commands import outside_make
from tests.conftest import BIN, ROOT, Command

FAST = ("--set", "interpolate.method=crossfade", "--set", "image_size=64")


@pytest.fixture
def faulty_root(synth_root: Path, tmp_path: Path) -> Path:
    root = tmp_path / "faulty"
    shutil.copytree(synth_root, root)

    def change(number: int) -> Path:
        return root / f"sc_images/CLEVR_semantic_{number:06d}.png"

    change(0).write_bytes(change(0).read_bytes()[:300])
    change(1).write_text("hello\n")
    Image.new("RGB", (1, 1)).save(change(2))
    grey = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    Image.fromarray(grey).save(change(3))
    Image.open(change(4)).convert("RGBA").save(change(4))
    captions = json.loads((root / "change_captions.json").read_text())
    captions["CLEVR_default_000005.png"] = []
    (root / "change_captions.json").write_text(json.dumps(captions))
    return root


def test_faulty_images_are_rejected_or_handled(
    faulty_root: Path, tmp_path: Path, prepare: Command
) -> None:
    out = tmp_path / "out"
    arguments = ("interpolate", "synth", "--root", faulty_root, "--out", out, *FAST)
    done = prepare(*arguments)
    assert done.returncode == 1
    assert "3 of 12 pairs rejected" in done.stderr
    assert "Traceback" not in done.stderr
    rejected = {r.id: r for r in rejects.read(str(out / "sequences"))}
    assert {id: r.reason for id, r in rejected.items()} == {
        "000000": "unreadable image",
        "000001": "unreadable image",
        "000002": "image too small",
    }
    assert all(r.kind == "change" and f"{id}.png" in r.message for id, r in rejected.items())
    written = {
        (s.meta["id"], s.meta["kind"]): s
        for shard in (out / "sequences").glob("*.tar")
        for s in sequences.read(str(shard))
    }
    assert len(written) == 9
    ramp = written["000003", "change"].frames()[-1]
    assert ramp.min() == 0
    assert ramp.max() == 255
    assert written["000005", "change"].meta["captions"] == []
    assert prepare("verify", out).returncode == 0
    inspected = prepare("inspect", "synth", "--root", faulty_root)
    assert inspected.returncode == 1
    assert inspected.stdout.count("fault: ") == 4
    # Mended and retried: only those, and as if nothing had been wrong.
    for number in (0, 1, 2):
        shutil.copy(
            faulty_root / f"images/CLEVR_default_{number:06d}.png",
            faulty_root / f"sc_images/CLEVR_semantic_{number:06d}.png",
        )
    again = prepare(*arguments, "--retry-rejects", "--json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert (summary["samples"], summary["rejected"]) == (12, 0)
    fresh = tmp_path / "fresh"
    fresh_arguments = ("interpolate", "synth", "--root", faulty_root, "--out", fresh, *FAST)
    assert prepare(*fresh_arguments).returncode == 0
    for shard in (out / "sequences").glob("*.tar"):
        assert shard.read_bytes() == (fresh / "sequences" / shard.name).read_bytes()


def test_a_users_mistake_gets_one_line(tmp_path: Path, cc_prep: Command) -> None:
    """By the real command; tests/faults/messages.md has the others."""
    done = cc_prep("interpolate", "clever", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr.startswith("cc-prep: no manifest")
    assert done.stderr.endswith('Did you mean "clevr"?\n')
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_make_without_data_says_where_it_belongs(tmp_path: Path) -> None:
    """`make interpolate DATASET=clevr` with the environment that the tests run in."""
    recipe = subprocess.run(
        [
            "make",
            "-n",
            "-s",
            "-C",
            str(ROOT),
            "interpolate",
            "DATASET=clevr",
            f"OUT={tmp_path}/out",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=outside_make(),
    ).stdout.splitlines()[-1]
    assert shlex.split(recipe) == [
        ".venv/bin/cc-prep", "interpolate", "clevr", "--out", f"{tmp_path}/out"
    ]  # fmt: skip
    command = recipe.replace(".venv/bin/cc-prep", str(BIN / "cc-prep"))
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no folder data/clevr" in done.stderr
    assert "cc-prep synth data/clevr" in done.stderr


def test_dry_run_writes_nothing(
    tmp_path: Path, synth_root: Path, prepare: Command, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        *("interpolate", "synth", "--root", synth_root, "--out", tmp_path / "o"),
        *("--set", "image_size=64"),
    )
    assert prepare(*arguments, "--dry-run").returncode == 0
    said = capfd.readouterr().err
    for part in ("12 in 3 shards", "workers", "GB a worker", "GB free", "rife-v4.0 b234ad8d0acf"):
        assert part in said
    assert re.search(
        r"time +about \d+ s with 1 worker: \d+ s to start, then .* \(read \d+%, ", said
    )
    assert not (tmp_path / "o").exists()
