"""Optimisers and their schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def learning_rate(step: int, steps: int, warmup: int, final_share: float) -> float:
    """The share of the full rate at a step: linear warm-up, then half a cosine to `final_share`."""
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def decayed(modules: Iterable[nn.Module], weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices and filters decay; biases, norms and embeddings do not."""
    plain: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    for module in modules:
        embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
        for parameter in module.parameters():
            flat = parameter.ndim < 2 or id(parameter) in embeddings
            (plain if flat else decaying).append(parameter)
    return [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def scaled(
    groups: list[dict[str, Any]], rate: float, betas: tuple[float, float]
) -> torch.optim.AdamW:
    """AdamW over `groups`; a group's `scale` multiplies the rate. Groups remember their `base`."""
    for group in groups:
        group["base"] = rate * group.pop("scale", 1.0)
    full = [{**group, "lr": group["base"]} for group in groups if group["params"]]
    return torch.optim.AdamW(full, lr=rate, betas=betas)
