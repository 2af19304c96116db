"""SCORER without and with each of its losses, and its variants, on rendered scenes; several seeds.

All but `captions alone` also learn what the renderer knows, as manifests/pairs.yaml has it.

    python benchmarks/scorer_comparison.py --out out/scorer [--seeds 3] [--jobs 1]
        [--beside NAME=RUN]... [--scored NAME=EVALUATION]... [--results FILE]
        [--docs docs/results.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and writes a table. It can be stopped and goes on where it
was. RESULTS has a line of JSON for each training under the same conditions. --beside evaluates
another captioner on the same scenes by the same command; --scored takes an evaluation that was made
so, such as a row of the zoo.
"""

from __future__ import annotations

from pathlib import Path

import click
from lib.ablation_tables import table_of
from lib.scene_lab import Lab, Plan
from lib.trainings import Results, replace

RESULTS = "benchmarks/results/scorer.jsonl"
MARK = "scorer comparison"
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


@click.command()
@click.option("--out", required=True, help="For scenes, shards and trainings.")
@click.option("--seeds", default=3, show_default=True)
@click.option("--jobs", default=1, show_default=True, help="Trainings at once, a thread each.")
@click.option("--variant", "variants", multiple=True, type=click.Choice([*VARIANTS]))
@click.option("--beside", multiple=True, metavar="NAME=RUN", help="Another captioner.")
@click.option("--scored", multiple=True, metavar="NAME=EVALUATION", help="An evaluation of one.")
@click.option("--results", default=RESULTS, show_default=True)
@click.option("--docs", help="A page whose table is replaced.")
def main(
    out: str,
    seeds: int,
    jobs: int,
    variants: tuple[str, ...],
    beside: tuple[str, ...],
    scored: tuple[str, ...],
    results: str,
    docs: str | None,
) -> None:
    """Trains what has no result yet, and writes the table."""
    lab = Lab(Path(out), Path(results), Plan("scorer", STEPS, VARIANTS))
    lab.work(seeds, jobs, variants, [_named(one) for one in beside])
    for name, evaluation in map(_named, scored):
        if not lab.is_known(name, evaluation):
            lab.add_scored(name, evaluation)
    text = markdown(lab.known())
    print(text)
    if docs:
        replace(Path(docs), MARK, text)


def _named(option: str) -> tuple[str, str]:
    name, _, place = option.partition("=")
    return name, place


def markdown(results: Results) -> str:
    """The table: means over the seeds with 95 % intervals (Student's t)."""
    return table_of(results, [*VARIANTS], FIGURES)


if __name__ == "__main__":
    main()
