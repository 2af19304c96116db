"""A small language model as a captioner: adapters against none, attention control, entities.

    python benchmarks/mllm_comparison.py --out out/mllm [--variant NAME]... [--seeds 3] [--jobs 1]
        [--steps N] [--results FILE] [--docs benchmarks/results/notes/mllm.md]

Trains SmolLM2-135M with the settings of manifests/pairs.yaml from captioner-mini, on shards that
also hold found changes and entities. It is evaluated on the test split, which nobody trains or
chooses on and whose captions give no entities. Otherwise scenes, shards, trainings and results are
as in scorer_comparison.py.

The stored results are of the first captioner-mini and its features. None of them counts for
today's, so this trains all variants again.
"""

from __future__ import annotations

from lib.comparison import Plan, Scenes, command

FOUND, RETRIEVED = "attention.where=vision", "entity.source=retrieved"
PLAN = Plan(
    system="mllm",
    steps=200,
    variants={
        "frozen, connector alone": ("lora.language=0",),
        "LoRA": (),
        "LoRA, true masks": (FOUND, "attention.masks=truth"),
        "LoRA, found masks": (FOUND,),
        "LoRA, entities": (RETRIEVED,),
        "LoRA, found masks and entities": (FOUND, RETRIEVED),
    },
    figures=("told apart", "type", "color", "shape", "exact", "CIDEr", "minutes"),
    results="benchmarks/results/mllm.jsonl",
    mark="mllm comparison",
    scenes=Scenes(fresh=None, findings=("changes", "entities")),
    start="captioner-mini",
    validations=1,
)
main = command(PLAN)


if __name__ == "__main__":
    main()
