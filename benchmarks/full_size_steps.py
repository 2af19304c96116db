"""Trains the networks of the paper's manifests, at their full size, for some steps on the CPU.

    python benchmarks/full_size_steps.py [--folder out/hours] [--steps 20] [MANIFEST…]

One process, micro-batches of few items, miniature shards of noise at 224 px and random weights
(those of `training_hours.py`). Nothing is learned: what is shown is that each training starts,
takes its steps with finite losses, and stores a checkpoint. Takes an hour of a core, and 8 GB.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import click
import training_hours

from cc_prep import manifest as manifest_files

BIN = Path(sys.executable).parent
ITEMS = {"stage1": 1, "stage2": 1, "scorer": 3}  # SCORER contrasts the pairs of a batch


@click.command()
@click.argument("manifests", nargs=-1)
@click.option("--folder", default="out/hours", show_default=True, type=click.Path(path_type=Path))
@click.option("--steps", default=20, show_default=True)
def main(manifests: tuple[str, ...], folder: Path, steps: int) -> None:
    """Prints a row for each training."""
    vqgan, backbone = training_hours.weights(folder)
    print("| manifest | training | items | steps | first loss | last loss |")
    print("|---|---|---|---|---|---|")
    for manifest in manifests or training_hours.MANIFESTS:
        kinds = ("change", "no_change") if manifest.endswith("_clevr") else ("change",)
        trained = manifest_files.load(manifest).train
        for system in [one for one in ITEMS if one in trained]:
            out = folder / "steps" / f"{Path(manifest).name}-{system}"
            shutil.rmtree(out, ignore_errors=True)
            shards = training_hours.write(folder, kinds, scored=system != "scorer")
            # Stage 2 has the VQGAN of its stage 1.
            frozen = {"stage1": [f"vqgan={vqgan}"], "scorer": [f"backbone_weights={backbone}"]}
            settings = [
                *frozen.get(system, ()), f"loop.batch_size={ITEMS[system]}",
                "loop.global_batch_size=null", "loop.log_every=1", "validation_split.pairs=1",
            ]  # fmt: skip
            more = ["--init", str(out.parent / f"{Path(manifest).name}-stage1")]
            train(
                system, "--config", manifest, "--out", str(out), "--shards", shards,
                "--steps", str(steps), *(more if system == "stage2" else ()),
                *(part for one in settings for part in ("--set", one)),
            )  # fmt: skip
            lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
            losses = [line["loss"] for line in lines if line["part"] == "train"]
            assert len(losses) == steps
            assert all(map(math.isfinite, losses)), losses
            print(f"| `{manifest}` | {system} | {ITEMS[system]} | {steps} | {losses[0]:.4g} "
                  f"| {losses[-1]:.4g} |", flush=True)  # fmt: skip


def train(*arguments: str) -> None:
    """Runs `cc-train`. Raises RuntimeError with its last line."""
    done = subprocess.run([BIN / "cc-train", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
