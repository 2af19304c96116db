"""The smallest training there is: a line, of which a step can be made to fail."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cc_train.runs.checkpoints import Criterion
from cc_train.training.objective import Objective


class Line(Objective):
    """A linear layer's mean output. nan_at: the step whose loss is no number."""

    criterion = Criterion("figure", True)

    def __init__(self, nan_at: int | None = None, gradient: float = 1.0) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(2, 1))
        self.nan_at, self.gradient = nan_at, gradient

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return [{"params": list(self.network.parameters())}]

    def denominators(self, batch: Any) -> dict[str, Tensor]:
        return {"n": torch.tensor(len(batch["x"]))}

    def losses(
        self, phase: str, batch: Any, step: int, denominators: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        output = self.network(batch["x"]).sum() / denominators["n"]
        output.register_hook(lambda gradient: gradient * self.gradient)
        return {"total": output * math.nan if step == self.nan_at else output}

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        return {"figure": 1.0}, None


def batch(number: int) -> dict[str, Tensor]:
    return {"x": torch.ones(4, 2)}
