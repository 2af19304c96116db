"""Each data set of the field from its official layout to a captioner, by the README's commands."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import BIN, ROOT
from tests.miniatures import MADE

# One thread a network, so that a busy machine does not make the threads wait for each other.
THREADS = " ".join(f"--set {step}.threads=1" for step in ("interpolate", "score", "tokenize"))
PREPARED = f"--set image_size=32 {THREADS}"
# The reference's networks are far too large for a test; all else is the manifest's.
SMALL = (
    "--steps 2 --set loop.batch_size=2 --set loop.device=cpu --set loop.threads=1 "
    "--set loop.warmup=1 --set network.width=64 --set network.layers=1"
)
DECODER = "--set decoder.width=32 --set decoder.heads=2 --set decoder.hidden=32"
STAGES = {
    "interpolate": PREPARED,
    "score": PREPARED,
    "shards": PREPARED,
    "stage1": SMALL,
    "stage2": f"{SMALL} {DECODER}",
}


@pytest.mark.parametrize("name", ["clevr", "clevr_dc", "spot", "edit", "levir"])
def test_from_raw_files_to_a_captioner(tmp_path: Path, name: str) -> None:
    MADE[name](tmp_path / "data")
    out = tmp_path / "out"
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    environment = {**kept, f"{name.upper()}_ROOT": str(tmp_path / "data")}
    for stage, arguments in STAGES.items():
        done = subprocess.run(
            ["make", "-s", "-C", str(ROOT), stage, f"DATASET={name}", f"OUT={out}",
             f"ARGS={arguments}"],
            capture_output=True, text=True, timeout=300, env=environment, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{stage}: {done.stdout}{done.stderr}"
    shards = f"{out}/shards/test-*.tar"
    evaluated = subprocess.run(
        [BIN / "cc-train", "evaluate", out / "stage2", "--shards", shards],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert evaluated.returncode == 0, evaluated.stderr
    scores = json.loads((out / "stage2/evaluation/scores.json").read_text())
    assert scores["groups"]["total"]["pairs"] > 0
