"""Our commands, as comparisons of captioners run them, and the figures that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
SIZE = 112


def run(program: str, *arguments: object) -> None:
    """Runs one of our commands with one thread. Ends the program where it fails."""
    command = [str(BIN / program), *map(str, arguments)]
    if subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode:
        sys.exit(f"failed: {' '.join(command)}")


def sets(*settings: str) -> list[object]:
    """The options that set them."""
    return [part for setting in settings for part in ("--set", setting)]


def render(folder: Path, scenes: int, seed: int, *options: str) -> None:
    """Renders scenes of 112 px with plain captions, where they are not there yet."""
    run("cc-prep", "synth", folder, "--scenes", scenes, "--seed", seed, *options,
        "--size", SIZE, "--wording", "plain")  # fmt: skip


def evaluate(path: object, out: Path, shards: Path) -> dict[str, Any]:
    """The scores of a captioner on shards; `out` holds them, and its captions."""
    run("cc-train", "evaluate", path, "--out", out, "--shards", shards)
    return scores_of(out)


def scores_file(evaluation: Path) -> Path:
    """Path of the scores of an evaluation in this folder."""
    return evaluation / "scores.json"


def scores_of(evaluation: Path) -> dict[str, Any]:
    """The figures of an evaluation in this folder."""
    scores: dict[str, Any] = json.loads(scores_file(evaluation).read_text())
    return scores


def validations(run_folder: Path) -> list[dict[str, Any]]:
    """The validations of a training: figures by name, and their step."""
    entries = map(json.loads, (run_folder / "log.jsonl").read_text().splitlines())
    return [entry for entry in entries if entry["part"] == "validation"]


def figures(scores: dict[str, Any]) -> dict[str, float]:
    """The figures of the tables: shares and measures of captions × 100, those of masks in %."""
    facts = scores["facts"]
    shares = {name: 100 * share["share"] for name, share in facts["shares"].items()}
    told_apart = 100 * facts["told apart"]["share"]
    of_masks = {}
    if "masks" in scores:
        of_masks = {name: scores["masks"][name] for name in ("mIoU-change", "false alarms")}
    if "faithfulness" in scores:
        faithful = scores["faithfulness"]
        of_masks |= {
            name: 100 * faithful[key]["share"]
            for name, key in (
                ("faithful", "predicted masks"),
                ("faithful, true masks", "true masks"),
                ("faithful, others' masks", "masks of other pairs"),
            )
        }
        both = faithful["contradictions"].values()
        pairs = sum(one["pairs"] for one in both)
        of_masks["contradictions"] = 100 * sum(one["count"] for one in both) / max(1, pairs)
    cider = scores["groups"]["total"]["CIDEr"]
    return {"told apart": told_apart, **shares, "CIDEr": cider, **of_masks}
