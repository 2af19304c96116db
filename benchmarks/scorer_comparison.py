"""SCORER without and with each of its losses, and its variants, on rendered scenes; several seeds.

All but `captions alone` also learn what the renderer knows, as manifests/pairs.yaml has it.

    python benchmarks/scorer_comparison.py --out out/scorer [--seeds 3] [--jobs 1] [--steps N]
        [--beside NAME=RUN]... [--scored NAME=EVALUATION]... [--results FILE]
        [--docs benchmarks/results/notes/scorer.md]

Renders scenes and builds shards where OUT has none, trains what has no result yet, evaluates on
scenes that nobody trained or chose on, and writes a table. It can be stopped and resumed. RESULTS
has a line of JSON for each training under the same conditions. --beside evaluates another captioner
on the same scenes by the same command; --scored takes an evaluation that was made so, such as a row
of the zoo. With --steps it is a trial: its results are in OUT unless --results names a file, and no
page is written.
"""

from __future__ import annotations

from lib.comparison import Plan, command

PLAN = Plan(
    system="scorer",
    steps=900,
    variants={
        "captions alone": ("facts=null",),
        "neither loss": ("losses.contrast=0", "losses.cbr=0"),
        "contrast, per head": ("losses.cbr=0",),
        "contrast, summed": ("losses.cbr=0", "matching=summed"),
        "contrast and CBR, frozen": ("cbr=frozen",),
        "contrast and CBR, trained": (),
        "both, loss over all slots": ("sentence=slots",),
        "as the public code": ("reference_quirks=true", "validation=greedy"),
    },
    figures=("exact", "told apart", "type", "color", "shape", "CIDEr", "validation CIDEr"),
    results="benchmarks/results/scorer.jsonl",
    mark="scorer comparison",
    backbone="efficientnet-lite0",
)
main = command(PLAN)


if __name__ == "__main__":
    main()
