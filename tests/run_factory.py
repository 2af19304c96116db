"""Small trainings of both stages, on shards of six scenes."""

from __future__ import annotations

import json
from pathlib import Path

from tests import weight_factory
from tests.commands import Done, cc_train
from tests.conftest import Command

SMALL = {
    "stage1": ["network.layers=1", "network.width=64", "network.position_std=0.02"],
    "stage2": ["decoder.width=16", "decoder.heads=2", "decoder.hidden=16", "decoder.length=8",
               "decoder.dropout=0", "loop.epochs=null"],
}  # fmt: skip
LOOP = ["loop.batch_size=2", "loop.threads=1", "loop.log_every=1", "loop.checkpoint_every=2",
        "loop.validate_every=4", "loop.learning_rate=1e-3", "loop.warmup_steps=2"]  # fmt: skip
STEPS = 8


def build(out: Path, weights: Path, synth_root: Path, prep: Command, *settings: str) -> str:
    """All splits of six scenes, with all frames as images; the pattern that names their shards."""
    values = [*weight_factory.settings(weights), "image_size=32", "interpolate.depth=2"]
    more = ["interpolate.method=crossfade", "keyframes.images=all", "shards.pairs_per_shard=3"]
    options = [part for value in (*values, *more, *settings) for part in ("--set", value)]
    done = prep("build", "synth", "--root", synth_root, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    return f"{out}/shards/*.tar"


def command(kind: str, weights: Path, shards: str, run: Path, *more: str) -> list[str]:
    values = [*SMALL[kind], *LOOP]
    if kind == "stage1":
        values.append(f"vqgan={weights / 'vqgan-test.safetensors'}")
    options = [part for value in values for part in ("--set", value)]
    return [kind, "--shards", shards, "--out", str(run), *options, "--steps", str(STEPS), *more]


def train(kind: str, weights: Path, shards: str, run: Path, *more: str) -> Done:
    return cc_train(*command(kind, weights, shards, run, *more))


def log(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def model(run: Path) -> bytes:
    return (run / f"checkpoints/{STEPS:06d}/model.safetensors").read_bytes()
