"""The training that tests overfit planted pairs by, and how many steps it takes.

A test asks whether a goal is reached at all, so its figure is the step at which it is. That step
hangs on rounding, and so on the processor: `max_steps` leaves it room, which costs nothing where a
training learns. `benchmarks/rounding_margins.py` measures the room.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from cc_train.training.objective import Objective


class Learning(NamedTuple):
    """How a training went.

    Attributes:
        steps: At which the goal was reached; infinite if it was not.
        max_steps: At which it was given up, or would have been.
    """

    steps: float
    max_steps: int

    @property
    def is_done(self) -> bool:
        return self.steps <= self.max_steps


def overfit(
    objective: Objective,
    batches: Iterable[dict[str, Any]],
    max_steps: int,
    rate: float,
    is_learned: Callable[[dict[str, float]], bool],
    every: int = 10,
) -> Learning:
    """Trains by AdamW at a constant rate, after a short warm-up, until the goal is reached.

    Args:
        objective: What is trained; its network is left in evaluation.
        batches: One for each step.
        max_steps: When to give up.
        rate: The learning rate.
        is_learned: Whether the goal is reached. It gets the losses of the step, summed over the
            batch's chunks; the network is in evaluation.
        every: After how many steps each time it is asked.
    """
    parameters = [p for group in objective.groups("model") for p in group["params"]]
    # A table of byte pairs stays as it was drawn: its update would take most of the time.
    trained = [p for p in parameters if p.requires_grad and p.numel() < 10**6]
    for parameter in parameters:
        parameter.requires_grad_(parameter.requires_grad and parameter.numel() < 10**6)
    # The short memory of squares: losses that fall by orders of magnitude within 100 steps.
    optimiser = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
    objective.network.train()
    for step, batch in enumerate(itertools.islice(batches, max_steps), start=1):
        torch.manual_seed(step)
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, step / 20)
        denominators = {n: v.clamp(min=1) for n, v in objective.denominators(batch).items()}
        optimiser.zero_grad()
        sums: dict[str, float] = {}
        for chunk in objective.chunks(batch):
            losses = objective.losses("model", chunk, step, denominators)
            losses["total"].backward()
            sums = {name: sums.get(name, 0) + float(v.detach()) for name, v in losses.items()}
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        objective.after_step(step)
        if step % every == 0:
            objective.network.eval()
            if is_learned(sums):
                return Learning(step, max_steps)
            objective.network.train()
    objective.network.eval()
    return Learning(math.inf, max_steps)
