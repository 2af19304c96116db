"""Linear layers on an AMD processor: oneDNN's matrix products, where torch takes MKL's.

Both come with torch. Intel's MKL leaves an AMD processor an eighth to a quarter slower than it is
(docs/performance.md); on an Intel processor torch's own choice stands.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: [..., channels] → [..., out], off by what float32 sums round.

    Through oneDNN in float32 on an AMD processor; elsewhere it is torch's own.
    """
    if not (
        x.device.type == "cpu"
        and x.numel() > 0
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and has_onednn_on_amd()
    ):
        return F.linear(x, weight, bias)
    product = _Product.apply if torch.is_grad_enabled() else _onednn
    found: Tensor = product(x.reshape(-1, x.shape[-1]), weight, bias)
    return found.view(*x.shape[:-1], len(weight))


@cache
def has_onednn_on_amd() -> bool:
    """Whether this is an AMD processor, and torch's oneDNN has linear layers."""
    try:
        about = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return (
        "AuthenticAMD" in about
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class _Product(torch.autograd.Function):
    """x wᵀ + b of x [N, channels], w [out, channels], b [out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _onednn(gradient, weight.T) if of_x else None,
            _onednn(gradient.T, x.T) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found
