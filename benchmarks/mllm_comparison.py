"""A small language model as a captioner: adapters against none, attention control, entities.

    cc-prep synth data/pairs --scenes 1300 --seed 8 --size 112 --wording plain
    cc-prep changes pairs --out OUT; cc-prep entities pairs --out OUT; cc-prep build pairs --out OUT
    python benchmarks/mllm_comparison.py --shards OUT/shards --out out/mllm [--variant NAME]...
        [--steps 200] [--seeds 3] [--results FILE] [--docs docs/results.md]

Trains SmolLM2-135M with the settings of manifests/pairs.yaml, each variant and seed that has no
result yet, and evaluates it on the test split, which nobody trains or chooses on and whose captions
give no entities. It can be stopped and goes on where it was. RESULTS has a line of JSON for each
training under the same conditions: settings, start and steps. It does not tell shards apart, so
other shards need other RESULTS.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import click
import yaml
from lib.ablation_tables import table_of
from lib.trainings import append, figures, read, replace, run, sets

from cc_prep import manifest

CONFIG, INIT = "pairs", "captioner-mini"
RESULTS = "benchmarks/results/mllm.jsonl"
MARK = "mllm comparison"
FOUND, RETRIEVED = "attention.where=vision", "entity.source=retrieved"
VARIANTS: dict[str, tuple[str, ...]] = {
    "frozen, connector alone": ("lora.language=0",),
    "LoRA": (),
    "LoRA, true masks": (FOUND, "attention.masks=truth"),
    "LoRA, found masks": (FOUND,),
    "LoRA, entities": (RETRIEVED,),
    "LoRA, found masks and entities": (FOUND, RETRIEVED),
}
FIGURES = ("told apart", "type", "color", "shape", "exact", "CIDEr", "minutes")


@click.command()
@click.option("--shards", required=True, help="With found changes and entities.")
@click.option("--out", required=True, help="For trainings.")
@click.option("--variant", "variants", multiple=True, type=click.Choice([*VARIANTS]))
@click.option("--steps", default=200, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--results", default=RESULTS, show_default=True)
@click.option("--docs", help="A page whose table is replaced.")
def main(
    shards: str,
    out: str,
    variants: tuple[str, ...],
    steps: int,
    seeds: int,
    results: str,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and writes the table."""
    of_manifest = yaml.safe_load(manifest.text_of(CONFIG))["train"]["mllm"]
    content = json.dumps([of_manifest, INIT, steps])
    conditions = hashlib.sha256(content.encode()).hexdigest()[:12]
    for seed in range(seeds):
        for name in variants or VARIANTS:
            if seed not in read(Path(results), conditions, VARIANTS).get(name, {}):
                line = {
                    "training": name,
                    "conditions": conditions,
                    "seed": seed,
                    "settings": [*VARIANTS[name]],
                }
                runs = Path(out) / conditions
                append(Path(results), line | train(name, seed, steps, shards, runs))
    text = table_of(read(Path(results), conditions, VARIANTS), [*VARIANTS], FIGURES)
    print(text)
    if docs:
        replace(Path(docs), MARK, text)


def train(name: str, seed: int, steps: int, shards: str, runs: Path) -> dict[str, object]:
    """Trains a variant with a seed, in a folder below `runs`; its figures on the test split."""
    began = time.monotonic()
    digest = hashlib.sha256(json.dumps(VARIANTS[name]).encode()).hexdigest()[:8]
    folder = runs / f"{digest}-{seed}"
    run("cc-train", "mllm", "--config", CONFIG, "--init", INIT, "--out", folder,
        "--shards", f"{shards}/train-*.tar", "--valid", f"{shards}/val-*.tar",
        *sets(f"loop.steps={steps}", f"loop.seed={seed}", *VARIANTS[name]))  # fmt: skip
    minutes = round((time.monotonic() - began) / 60, 1)
    run("cc-train", "evaluate", folder, "--shards", f"{shards}/test-*.tar")
    scores = json.loads((folder / "evaluation/scores.json").read_text())
    return {**figures(scores), "minutes": minutes}


if __name__ == "__main__":
    main()
