"""A captioner that says everything that a captioner can say, at once and without any network."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cc_train.captioner import Attention, Caption, Inputs

SIZE = (16, 16)
WORDS = ("the", "cube", "moved")


class Talkative:
    """Looks at one cell of 2 × 2 for each word, and at another one for the next."""

    inputs = Inputs(SIZE)
    device = torch.device("cpu")

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        maps = np.zeros((len(WORDS), 2, 2), np.float32)
        maps[range(len(WORDS)), (0, 0, 1), (0, 1, 0)] = 1
        mask = np.zeros(SIZE, np.uint8)
        mask[4:8, 4:8], mask[8:10, 4:8] = 1, 2
        text = " ".join(WORDS)
        ranked = tuple((f"{text} {rank}", -float(rank)) for rank in range(beams))
        if beams > 1:
            return [Caption(ranked[0][0], ranked) for _ in before_after]
        looked = Attention(WORDS, maps)
        return [Caption(text, (), mask, -1.0, 1.0, 0.75, looked) for _ in before_after]

    def imagine(self, before_after: Tensor) -> Tensor:
        return torch.cat((before_after[:, :1], before_after), dim=1)
