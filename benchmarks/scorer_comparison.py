"""SCORER without and with each of its losses, and its variants, on rendered scenes; several seeds.

All but `captions alone` also learn what the renderer knows, as manifests/pairs.yaml has it.

    python benchmarks/scorer_comparison.py --out out/scorer [--seeds 3] [--jobs 1]
        [--beside NAME=RUN]... [--results FILE] [--docs docs/results.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and writes a table. It can be stopped and goes on where it
was. RESULTS has a line of JSON for each training under the same conditions. --beside evaluates
another captioner on the same scenes by the same command.
"""

from __future__ import annotations

import hashlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import click
import yaml
from lib.ablation_tables import cell
from lib.trainings import Results, append, figures, read, replace, run, sets

from cc_prep import manifest

CONFIG = "pairs"
RESULTS = "benchmarks/results/scorer.jsonl"
MARK = "scorer comparison"
SCENES, SEED = 1300, 8
FRESH, FRESH_SEED = 200, 996
STEPS = 900
VARIANTS: dict[str, tuple[str, ...]] = {
    "captions alone": ("facts=null",),
    "neither loss": ("losses.contrast=0", "losses.cbr=0"),
    "contrast, per head": ("losses.cbr=0",),
    "contrast, summed": ("losses.cbr=0", "matching=summed"),
    "contrast and CBR, frozen": ("cbr=frozen",),
    "contrast and CBR, trained": (),
    "both, loss over all slots": ("sentence=slots",),
    "as the public code": ("reference_quirks=true", "validation=greedy"),
}
FIGURES = ("exact", "told apart", "type", "color", "shape", "CIDEr", "validation CIDEr")
WRITING = Lock()


@click.command()
@click.option("--out", required=True, help="For scenes, shards and trainings.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Trainings at once, a thread each.")
@click.option("--variant", "variants", multiple=True, type=click.Choice([*VARIANTS]))
@click.option("--beside", multiple=True, metavar="NAME=RUN", help="Another captioner.")
@click.option("--results", default=RESULTS, show_default=True)
@click.option("--docs", help="A page whose table is replaced.")
def main(
    out: str,
    seeds: int,
    jobs: int,
    variants: tuple[str, ...],
    beside: tuple[str, ...],
    results: str,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and writes the table."""
    lab = Lab(Path(out), Path(results))
    known = read(lab.results, lab.conditions)
    missing = [
        (variant, seed)
        for seed in range(seeds)
        for variant in variants or VARIANTS
        if seed not in known.get(variant, {})
    ]
    others = [tuple(one.split("=", 1)) for one in beside]
    others = [(name, place) for name, place in others if name not in known]
    if missing or others:
        lab.prepare()
    for name, place in others:
        lab.evaluate_another(name, place)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for future in [pool.submit(lab.train, *one) for one in missing]:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    text = markdown(read(lab.results, lab.conditions))
    print(text)
    if docs:
        replace(Path(docs), MARK, text)


class Lab:
    """The folder of a comparison: scenes, shards and trainings."""

    def __init__(self, folder: Path, results: Path) -> None:
        self.folder, self.results = folder, results
        known = yaml.safe_load(manifest.text_of(CONFIG))
        of_manifest = [known["features"], known["image_size"], known["train"]["scorer"]]
        content = [of_manifest, SCENES, SEED, FRESH, FRESH_SEED, STEPS]
        self.conditions = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

    def prepare(self) -> None:
        """Scenes and shards, where they are not there yet."""
        for name, count, seed in (("scenes", SCENES, SEED), ("fresh", FRESH, FRESH_SEED)):
            shards = self.folder / f"{name}-pairs"
            if (shards / "shards/index.parquet").exists():
                continue
            run("cc-prep", "synth", self.folder / name, "--scenes", count, "--seed", seed,
                "--size", 112, "--wording", "plain")  # fmt: skip
            run("cc-prep", "build", CONFIG, "--root", self.folder / name, "--out", shards)

    def train(self, variant: str, seed: int) -> None:
        """Trains a variant with a seed and adds its figures to the results."""
        began = time.monotonic()
        name = hashlib.sha256(json.dumps([*VARIANTS[variant]]).encode()).hexdigest()[:8]
        folder = self.folder / "runs" / f"{name}-{self.conditions}-{seed}"
        shards = self.folder / "scenes-pairs/shards"
        run("cc-train", "scorer", "--config", CONFIG, "--out", folder, "--steps", STEPS,
            "--shards", shards / "train-*.tar", "--valid", shards / "val-*.tar",
            *sets("loop.threads=1", f"loop.seed={seed}", f"loop.validate_every={STEPS // 2}",
                  *VARIANTS[variant]))  # fmt: skip
        minutes = round((time.monotonic() - began) / 60, 1)
        best = max(line["CIDEr"] for line in _log(folder) if "right_exact" in line)
        self._keep(variant, seed, folder, {"validation CIDEr": best, "minutes": minutes})

    def evaluate_another(self, name: str, place: str) -> None:
        self._keep(name, 0, place, {"beside": place})

    def _keep(self, name: str, seed: int, place: object, more: dict[str, Any]) -> None:
        evaluation = self.folder / "evaluations" / f"{name.replace(' ', '-')}-{seed}"
        run("cc-train", "evaluate", place, "--out", evaluation,
            "--shards", self.folder / "fresh-pairs/shards/*.tar")  # fmt: skip
        scores = json.loads((evaluation / "scores.json").read_text())
        line = {"training": name, "conditions": self.conditions, "seed": seed, **figures(scores)}
        with WRITING:
            append(self.results, {**line, **more})


def _log(run_folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_folder / "log.jsonl").read_text().splitlines()]


def markdown(results: Results) -> str:
    """The table: means over the seeds with 95 % intervals (Student's t)."""
    lines = ["| " + " | ".join(["", "seeds", *FIGURES]) + " |", "|---" * (len(FIGURES) + 2) + "|"]
    for name in [*VARIANTS, *(name for name in results if name not in VARIANTS)]:
        seeds = results.get(name, {})
        cells = [cell([float(one[f]) for one in seeds.values() if f in one]) for f in FIGURES]
        lines.append("| " + " | ".join([name, str(len(seeds)), *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
