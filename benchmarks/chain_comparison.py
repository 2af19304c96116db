"""The chain with 0, 1 and 2 rounds, without each term of consistency, and its two controls.

Every training starts from captioner-mini, whose encoder and decoder stay as they are
(manifests/pairs.yaml), and all have the same parameters.

    python benchmarks/chain_comparison.py --out out/chain [--seeds 3] [--jobs 1]
        [--beside NAME=RUN]... [--results FILE] [--docs docs/results.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and writes a table. It can be stopped and goes on where it
was. RESULTS has a line of JSON for each training under the same conditions.
"""

from __future__ import annotations

from pathlib import Path

import click
from lib.ablation_tables import table_of
from lib.scene_lab import Lab, Plan
from lib.trainings import replace

RESULTS = "benchmarks/results/chain.jsonl"
MARK = "chain comparison"
STEPS = 160
VARIANTS: dict[str, tuple[str, ...]] = {
    "2 rounds": (),
    "1 round": ("rounds=1",),
    "0 rounds": ("rounds=0",),
    "2 rounds, a constant for the words": ("feedback=constant",),
    "2 rounds, side by side": ("feedback=none",),
    "2 rounds without pointing": ("losses.pointing=0",),
    "2 rounds without contrast": ("losses.contrast=0",),
    "2 rounds without agreement": ("losses.agreement=0",),
}
FIGURES = (
    "mIoU-change", "faithful", "faithful, true masks", "faithful, others' masks", "contradictions",
    "false alarms", "exact", "CIDEr",
)  # fmt: skip


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
    plan = Plan("chain", STEPS, VARIANTS, ("--init", "captioner-mini"))
    lab = Lab(Path(out), Path(results), plan)
    pairs = [(one.partition("=")[0], one.partition("=")[2]) for one in beside]
    lab.work(seeds, jobs, variants, pairs)
    text = table_of(lab.known(), [*VARIANTS], FIGURES)
    print(text)
    if docs:
        replace(Path(docs), MARK, text)


if __name__ == "__main__":
    main()
