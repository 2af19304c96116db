"""The rows of the ablation: which training each is, in settings of our own commands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

# How the frames that stage 1 learns from are made.
PROCESSES = ("dis", "crossfade", "rife", "truth")
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
    2. paper: its CIDEr on CLEVR-Change.
    """

    table: str
    name: str
    k: int = K
    stage1: Stage1 | None = None
    settings: tuple[str, ...] = ()
    paper: float | None = None

    @property
    def training(self) -> str:
        """Names the training. Rows of several tables may be one training."""
        first = None if self.stage1 is None else [self.stage1.process, *self.stage1.settings]
        told = json.dumps([self.k, first, self.settings])
        return hashlib.sha256(told.encode()).hexdigest()[:12]


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
DECODER = (
    Row("decoder", "states, captions alone", stage1=ALL,
        settings=("comparison=null", "facts=null")),
    Row("decoder", "differences, captions alone", stage1=ALL, settings=("facts=null",)),
    Row("decoder", "differences and facts", stage1=ALL),
)  # fmt: skip
TABLES = {
    "stages": STAGES,
    "losses": LOSSES,
    "keyframes": RULES,
    "process": FRAMES,
    "decoder": DECODER,
}
