"""Optimisers and their schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

Schedule = Literal["cosine", "linear", "constant", "step"]
Optimizer = Literal["adamw", "bert_adam"]


def lr_multiplier(
    step: int,
    steps: int,
    warmup: int,
    min_lr_ratio: float,
    schedule: Schedule = "cosine",
    decay: tuple[int, float] = (1, 1.0),
) -> float:
    """The share of the full rate at a step.

    cosine: linear warm-up, then half a cosine to `min_lr_ratio`. linear: from 0 up, then down to 0,
    as BERT. constant: a logarithmic warm-up from a hundredth, then the full rate, as DeepSpeed's
    WarmupLR with its usual ends.

    Args:
        step: Linear warm-up; every `decay[0]` steps the rate is multiplied by `decay[1]`, as
            torch's StepLR.
    """
    if schedule == "linear":
        if step < warmup:
            return step / warmup
        return max(0.0, (steps - step) / max(1, steps - warmup))
    if schedule == "constant":
        if step >= warmup:
            return 1.0
        return 0.01 + 0.99 * (math.log(step) / math.log(warmup) if step > 1 else 0.0)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "step":
        every, ratio = decay
        return ratio ** float(step // every)
    done = (step - warmup) / max(1, steps - warmup)
    return min_lr_ratio + (1 - min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def running_average(decay: float) -> Callable[..., None]:
    """For AveragedModel: an average over the last 1 / (1 - decay) steps, over fewer at first.

    After n steps the decay is at most (1 + n) / (10 + n), so that the weights of the start are soon
    forgotten, as in TensorFlow's ExponentialMovingAverage.
    """

    @torch.no_grad()
    def update(averaged: Any, current: Any, count: torch.Tensor) -> None:
        n = int(count)
        get_ema_multi_avg_fn(min(decay, (1 + n) / (10 + n)))(averaged, current, count)

    return update


def param_groups(
    modules: Iterable[nn.Module], weight_decay: float, decay_norms: bool = False
) -> list[dict[str, Any]]:
    """Parameter groups: matrices and filters decay; biases, norms and embeddings do not.

    The word table of a caption decoder is the weight of its output layer, and decays. What else is
    spared a module names in `no_weight_decay() -> set of names`, as timm's networks do.

    Args:
        decay_norms: Only what is named a bias is spared, as in BERT's and ProCap's code.
    """
    plain: list[nn.Parameter] = []
    decaying: list[nn.Parameter] = []
    for module in modules:
        undecayed = {id(p) for part in module.modules() for p in _undecayed(part)}
        for name, parameter in module.named_parameters():
            spared = parameter.ndim < 2 or id(parameter) in undecayed
            (plain if ("bias" in name if decay_norms else spared) else decaying).append(parameter)
    return [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def _undecayed(module: nn.Module) -> list[torch.Tensor]:
    """A module's own parameters that are spared although they have two or more dimensions."""
    if isinstance(module, nn.Embedding):
        return [module.weight]
    names: Iterable[str] = getattr(module, "no_weight_decay", tuple)()
    return [module.get_parameter(name) for name in names]


def build_optimizer(
    groups: list[dict[str, Any]], rate: float, betas: tuple[float, float], kind: Optimizer = "adamw"
) -> torch.optim.Optimizer:
    """An optimiser; a group's `scale` multiplies the rate. Groups remember their `base`.

    A group without a `weight_decay` of its own has none: AdamW's own default would be 0.01.
    """
    for group in groups:
        group["base"] = rate * group.pop("scale", 1.0)
    full = [{**group, "lr": group["base"]} for group in groups if group["params"]]
    if kind == "bert_adam":
        return BertAdam(full, lr=rate, betas=betas, weight_decay=0.0)
    # fused: a third of the time
    return AdamW(full, lr=rate, betas=betas, weight_decay=0.0, fused=True)


class _NeverCompiled(torch.optim.Optimizer):
    """An optimiser whose first call does not import torch's compiler, which takes two seconds.

    torch wraps these methods so that its compiler leaves them out, and imports it for that. Here no
    optimiser is compiled: `loop.compile` is about the objective only.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class AdamW(_NeverCompiled, torch.optim.AdamW):
    """torch's AdamW. Its `differentiable` is not supported."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class BertAdam(_NeverCompiled):
    """Adam as BERT was trained with: no bias correction, decoupled decay times the rate.

    Each tensor's gradient is clipped to `clip` by itself, on top of any clipping before. Source:
    ProCap's code; `torch.optim.AdamW` is not the same.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        clip: float = 1.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "clip": clip})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            for parameter in trained:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
            if trained and trained[0].is_cuda:  # ten launches for all in place of ten for each
                self.together(group, trained)
                continue
            for parameter in trained:
                self._one(group, parameter)

    def _one(self, group: Mapping[str, Any], parameter: torch.Tensor) -> None:
        beta1, beta2 = group["betas"]
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if group["clip"] > 0:
            share = group["clip"] / (gradient.norm() + 1e-6)
            gradient = gradient * share.clamp(max=1.0)
        state["mean"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = state["mean"] / (state["square"].sqrt() + group["eps"])
        update.add_(parameter, alpha=group["weight_decay"])
        parameter.sub_(update, alpha=group["lr"])

    @torch.no_grad()
    def together(self, group: Mapping[str, Any], parameters: list[Any]) -> None:
        """The update of all parameters of a group at once; the same but for rounding."""
        beta1, beta2 = group["betas"]
        gradients = [parameter.grad for parameter in parameters]
        means = [self.state[parameter]["mean"] for parameter in parameters]
        squares = [self.state[parameter]["square"] for parameter in parameters]
        if group["clip"] > 0:
            norms = torch._foreach_add(torch._foreach_norm(gradients), 1e-6)
            shares = torch._foreach_mul(torch._foreach_reciprocal(norms), group["clip"])
            clipped = torch._foreach_mul(gradients, torch._foreach_clamp_max(shares, 1.0))
            gradients = list(clipped)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - beta2)
        roots = torch._foreach_add(torch._foreach_sqrt(squares), group["eps"])
        updates = torch._foreach_div(means, roots)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        torch._foreach_sub_(parameters, updates, alpha=group["lr"])
