"""What a training costs, before it starts: `cc-train SYSTEM --dry-run`.

One micro-batch of a few items goes forward and back on the CPU, and its FLOPs, its seconds and the
bytes that the backward pass keeps are counted. So the estimate has no formula of any network.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cc_train.training.objective import Objective
from cc_train.training.settings import Loop

GB, TERA, HOUR = 1e9, 1e12, 3600.0
NAMED = 0.01  # of a step's FLOPs; a part with fewer is not named
# Dense TFLOP/s that the makers quote, and the share of them that networks of this kind are assumed
# to reach; neither was measured.
DEVICES: Mapping[str, Mapping[str, float]] = {
    "H100 or H200 (SXM)": {"float32": 67, "TF32": 495, "bfloat16": 989},
    "A100": {"float32": 19.5, "TF32": 156, "bfloat16": 312},
    "L40S": {"float32": 91.6, "TF32": 183, "bfloat16": 362},
    "RTX 4090": {"float32": 82.6, "TF32": 82.6, "bfloat16": 165},
}
REACHED = {"float32": 0.6, "TF32": 0.4, "bfloat16": 0.4}
LAUNCHES = 0.02  # s: a step of many small kernels is assumed to take no less


@dataclass(frozen=True)
class Count:
    """What one micro-batch takes.

    Attributes:
        items: Of the micro-batch.
        flop: Floating-point operations, a multiplication and an addition being two, by part.
        seconds: On this machine's CPU.
        kept_bytes: Tensors that the backward pass needs.
    """

    items: int
    flop: Mapping[str, float]
    seconds: float
    kept_bytes: int


def count(objective: Objective, batch: Any, items: int) -> Count:
    """Takes the passes of a step, without its update, and counts them."""
    objective.network.train()
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=_kernels())
    with counter, torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        _passes(objective, batch)
    start = time.perf_counter()
    _passes(objective, batch)
    weights = {p.untyped_storage().data_ptr() for p in objective.network.parameters()}
    return Count(
        items,
        _by_part(counter),
        time.perf_counter() - start,
        sum(size for place, size in kept.items() if place not in weights),
    )


def _passes(objective: Objective, batch: Any) -> None:
    denominators = {n: d.clamp(min=1) for n, d in objective.denominators(batch).items()}
    for phase in objective.phases:
        for chunk in objective.chunks(batch):
            objective.losses(phase, chunk, 0, denominators)["total"].backward()


def _kernels() -> dict[Any, Any]:
    """FLOPs of the CPU's own layers, which torch's counter does not know."""
    kernels: dict[Any, Any] = {}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        kernels[torch.ops.mkldnn._linear_pointwise] = _of_product
    if hasattr(torch.ops.aten, "_nnpack_spatial_convolution"):
        kernels[torch.ops.aten._nnpack_spatial_convolution] = _of_convolution
    return kernels


def _of_product(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    rows = 1
    for size in x[:-1]:
        rows *= size
    return 2 * rows * int(weight[0]) * int(weight[1])


def _of_convolution(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    places = out_shape[0] * out_shape[2] * out_shape[3]
    return int(2 * places * weight[0] * weight[1] * weight[2] * weight[3])


def _by_part(counter: FlopCounterMode) -> dict[str, float]:
    """FLOPs by the largest modules that lie in no other; what lies in none is `other`.

    In the backward pass torch's counter gives some operations to two modules: only the sum is
    exact, to which the parts are brought.
    """
    flop = {name: float(sum(of.values())) for name, of in counter.get_flop_counts().items()}
    total = flop.pop("Global", 0.0)
    parts = {name: value for name, value in flop.items() if "." not in name}
    parts["other"] = max(0.0, total - sum(parts.values()))
    whole = sum(parts.values())
    return {name: value * total / whole for name, value in parts.items()} if whole else parts


def table(counts: list[Count], objective: Objective, loop: Loop, items: int) -> str:
    """The cost of the training as lines for a terminal.

    Args:
        counts: Of one micro-batch; of a second, larger one where losses compare all items of a step
            with each other: their FLOPs grow with the square of the number.
        loop: With the number of its steps.
        items: Of an epoch.
    """
    step_items = loop.global_batch_size or loop.batch_size * loop.grad_accum_steps
    parts = of_step(counts, step_items)
    total = sum(parts.values())
    seconds = counts[-1].seconds / sum(counts[-1].flop.values()) * total
    parameters = list(objective.network.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    held = 4 * (sum(p.numel() for p in parameters) + 3 * trained)
    kept = counts[-1].kept_bytes * loop.batch_size / counts[-1].items
    named = sorted(((v, n) for n, v in parts.items() if v > NAMED * total), reverse=True)
    lines = [
        f"steps: {loop.steps:,} of {step_items:,} items, "
        f"{loop.steps * step_items / items:.3g} epochs of {items:,}",
        f"a step: {total / TERA:.3g} TFLOP ("
        + ", ".join(f"{name} {value / TERA:.3g}" for value, name in named) + ")",
        f"memory in float32: {held / GB:.2g} GB of weights, gradients and AdamW's state, about "
        f"{kept / GB:.2g} GB of activations",
        f"this machine's CPU: {_hours(seconds * loop.steps)}, from one step of "
        f"{counts[-1].items} items",
        "estimates from what makers quote; reading, validations and checkpoints come on top:",
    ]  # fmt: skip
    for device, speeds in DEVICES.items():
        hours = (
            f"{name} {_hours(seconds_of(total, device, name) * loop.steps)}" for name in speeds
        )
        lines.append(f"  {device}: {', '.join(hours)}")
    return "\n".join(lines)


def of_step(counts: list[Count], items: int) -> dict[str, float]:
    """FLOPs of a step with so many items, by part; see `table`."""
    names = counts[-1].flop
    parts = {
        name: _scaled(counts, [c.flop.get(name, 0.0) for c in counts], items) for name in names
    }
    total = _scaled(counts, [sum(count.flop.values()) for count in counts], items)
    whole = sum(parts.values()) or 1.0
    return {name: value * total / whole for name, value in parts.items()}


def seconds_of(flop: float, device: str, precision: str) -> float:
    """Seconds of a step of so many FLOPs on one of DEVICES, an estimate."""
    return max(flop / (DEVICES[device][precision] * TERA * REACHED[precision]), LAUNCHES)


def _scaled(counts: list[Count], flop: list[float], items: int) -> float:
    """FLOPs with so many items: a · items, or a · items + c · items² of two counts.

    Args:
        flop: Of each count.
    """
    last = counts[-1]
    if len(counts) == 1:
        return flop[-1] * items / last.items
    first = counts[0]
    slope = flop[0] / first.items
    square = (flop[-1] / last.items - slope) / (last.items - first.items)
    square = max(0.0, square)
    return (slope - square * first.items) * items + square * items**2


def _hours(seconds: float) -> str:
    if seconds < HOUR:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / HOUR:.2g} h" if seconds < 100 * HOUR else f"{seconds / HOUR:,.0f} h"
