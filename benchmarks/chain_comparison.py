"""The chain with 0, 1 and 2 rounds, without each term of consistency, and its two controls.

Every training starts from captioner-mini, whose encoder and decoder stay as they are
(manifests/pairs.yaml), and all have the same parameters.

    python benchmarks/chain_comparison.py --out out/chain [--seeds 3] [--jobs 1] [--steps N]
        [--beside NAME=RUN]... [--results FILE] [--docs benchmarks/results/notes/chain.md]

Scenes, shards, trainings and results are as in scorer_comparison.py. The stored results started
from the captioner-mini before today's. None of them counts for today's, so this trains all
variants again.
"""

from __future__ import annotations

from lib.comparison import Plan, command

PLAN = Plan(
    system="chain",
    steps=160,
    variants={
        "2 rounds": (),
        "1 round": ("rounds=1",),
        "0 rounds": ("rounds=0",),
        "2 rounds, a constant for the words": ("feedback=constant",),
        "2 rounds, side by side": ("feedback=none",),
        "2 rounds without pointing": ("losses.pointing=0",),
        "2 rounds without contrast": ("losses.contrast=0",),
        "2 rounds without agreement": ("losses.agreement=0",),
    },
    figures=("mIoU-change", "faithful", "faithful, true masks", "faithful, others' masks",
             "contradictions", "false alarms", "exact", "CIDEr"),
    results="benchmarks/results/chain.jsonl",
    mark="chain comparison",
    start="captioner-mini",
)  # fmt: skip
main = command(PLAN)


if __name__ == "__main__":
    main()
