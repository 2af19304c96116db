"""The rows of the ablation: which training each is, in settings of our own commands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lib.results import digest

# How the frames that stage 1 learns from are made.
PROCESSES = ("dis", "crossfade", "rife", "truth")
# What stage 2 sees of an image: grid features of a backbone of `cc-prep build`.
FEATURES, LATENTS = "efficientnet-lite0", "vqgan"
K = 2


@dataclass(frozen=True)
class Stage1:
    """A training of stage 1. process: one of PROCESSES. settings: of `--set`."""

    process: str = "dis"
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """A line of a table: a captioner, trained with several seeds.

    k: number of queries. stage1: what it starts from; None starts from nothing. settings: of stage
    2. paper: its CIDEr on CLEVR-Change. backbone: whose features stage 2 sees.
    """

    table: str
    name: str
    k: int = K
    stage1: Stage1 | None = None
    settings: tuple[str, ...] = ()
    paper: float | None = None
    backbone: str = FEATURES

    @property
    def training(self) -> str:
        """Names the training. Rows of several tables may be one training."""
        first = None if self.stage1 is None else [self.stage1.process, *self.stage1.settings]
        content: list[object] = [self.k, first, self.settings]
        if self.backbone != FEATURES:
            content.append(self.backbone)
        return digest(content)


ALL = Stage1()
STAGES = (
    Row("stages", "neither", k=0, paper=108.4),
    Row("stages", "stage 1 alone", k=0, stage1=ALL, paper=112.7),
    Row("stages", "queries alone, k = 1", k=1, paper=106.2),
    Row("stages", "queries alone, k = 2", k=2),
    Row("stages", "queries alone, k = 4", k=4),
    Row("stages", "both, k = 1", k=1, stage1=ALL, paper=128.5),
    Row("stages", "both, k = 2", k=2, stage1=ALL, paper=135.6),
    Row("stages", "both, k = 4", k=4, stage1=ALL, paper=128.7),
)
LOSSES = (
    Row("losses", "msm", stage1=Stage1(settings=("losses.align=0", "losses.consistency=0"))),
    Row("losses", "msm + consistency", stage1=Stage1(settings=("losses.align=0",))),
    Row("losses", "all", stage1=ALL),
)
RULES = tuple(
    Row("keyframes", rule, stage1=Stage1(settings=settings))
    for rule, settings in (
        ("confidence", ()),  # the manifest's
        ("uniform", ("keyframes.strategy=uniform",)),
        ("random", ("keyframes.strategy=random",)),
    )
)
FRAMES = tuple(Row("process", process, stage1=Stage1(process=process)) for process in PROCESSES)
# Neither stage 1 nor queries: what the decoder is shown, and what it is taught by.
HEADS = {
    "states, captions": ("comparison=null", "facts=null"),
    "differences, captions": ("facts=null",),
    "differences, captions and facts": (),  # facts are learned by the differences
}
INPUTS = tuple(
    Row("inputs", f"{label}, {head}", k=0, settings=settings, backbone=backbone)
    for label, backbone in (("latents", LATENTS), ("features", FEATURES))
    for head, settings in HEADS.items()
)
# Twice the steps: what is still to be learned after 1,000. Without stage 1, k = 2 stands for all k.
LONG = ("loop.steps=2000",)
LONGER = tuple(
    replace(row, table="longer", settings=LONG, paper=None)
    for row in STAGES
    if row.stage1 is not None or row.k in (0, K)
)
TABLES = {
    "stages": STAGES,
    "longer": LONGER,
    "losses": LOSSES,
    "keyframes": RULES,
    "process": FRAMES,
    "inputs": INPUTS,
}
