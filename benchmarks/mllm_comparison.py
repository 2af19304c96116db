"""A small language model as a captioner: adapters against none, attention control, entities.

    python benchmarks/mllm_comparison.py --shards OUT/shards --fresh FRESH/shards --out out/mllm
        [--variant NAME]... [--steps 400] [--seed 0] [--results FILE] [--docs docs/results.md]

Trains SmolLM2-135M with the settings of manifests/pairs.yaml, each variant that has no result yet,
and evaluates it on samples of shards that nobody trained or chose on. Both folders hold shards of
rendered pairs with features at 112 px; for attention control and entities also what `cc-prep
changes` and `cc-prep entities` found. It can be stopped and goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import click
import yaml
from lib.trainings import Results, append, figures, read, replace, run, sets

from cc_prep import manifest

CONFIG, INIT = "pairs", "captioner-mini"
RESULTS = "benchmarks/results/mllm.jsonl"
MARK = "mllm comparison"
FOUND, RETRIEVED = "attention.where=vision", "entity.source=retrieved"
VARIANTS: dict[str, tuple[str, ...]] = {
    "frozen, new eyes alone": ("lora.language=0",),
    "LoRA": (),
    "LoRA, true masks": (FOUND, "attention.masks=truth"),
    "LoRA, found masks": (FOUND,),
    "LoRA, entities": (RETRIEVED,),
    "LoRA, found masks and entities": (FOUND, RETRIEVED),
}
FIGURES = ("exact", "told apart", "type", "color", "shape", "CIDEr", "minutes")


@click.command()
@click.option("--shards", required=True, help="To train and to validate on.")
@click.option("--fresh", required=True, help="To evaluate on: all splits of it.")
@click.option("--out", required=True, help="For trainings.")
@click.option("--variant", "variants", multiple=True, type=click.Choice([*VARIANTS]))
@click.option("--steps", default=400, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--results", default=RESULTS, show_default=True)
@click.option("--docs", help="A page whose table is replaced.")
def main(
    shards: str,
    fresh: str,
    out: str,
    variants: tuple[str, ...],
    steps: int,
    seed: int,
    results: str,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and writes the table."""
    of_manifest = yaml.safe_load(manifest.text_of(CONFIG))["train"]["mllm"]
    content = json.dumps([of_manifest, INIT, steps])
    conditions = hashlib.sha256(content.encode()).hexdigest()[:12]
    for name in variants or VARIANTS:
        if seed in read(Path(results), conditions).get(name, {}):
            continue
        began = time.monotonic()
        digest = hashlib.sha256(json.dumps(VARIANTS[name]).encode()).hexdigest()[:8]
        folder = Path(out) / f"{digest}-{conditions}-{seed}"
        run("cc-train", "mllm", "--config", CONFIG, "--init", INIT, "--out", folder,
            "--shards", f"{shards}/train-*.tar", "--valid", f"{shards}/val-*.tar",
            *sets(f"loop.steps={steps}", f"loop.seed={seed}", *VARIANTS[name]))  # fmt: skip
        minutes = round((time.monotonic() - began) / 60, 1)
        run("cc-train", "evaluate", folder, "--shards", f"{fresh}/*.tar")
        scores = json.loads((folder / "evaluation/scores.json").read_text())
        line = {"training": name, "conditions": conditions, "seed": seed, **figures(scores)}
        append(Path(results), {**line, "minutes": minutes})
    text = markdown(read(Path(results), conditions))
    print(text)
    if docs:
        replace(Path(docs), MARK, text)


def markdown(known: Results) -> str:
    """The table; of several seeds the mean."""
    lines = ["| " + " | ".join(["", "seeds", *FIGURES]) + " |", "|---" * (len(FIGURES) + 2) + "|"]
    for name, seeds in known.items():
        cells = [str(len(seeds))]
        for figure in FIGURES:
            values = [float(one[figure]) for one in seeds.values() if figure in one]
            cells.append(f"{sum(values) / len(values):.1f}" if values else "–")
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
