"""Linear layers through oneDNN's matrix products, where torch takes MKL's. Both come with torch.

`Linear` does so on an AMD processor, which Intel's MKL leaves an eighth to a quarter slower than it
is (docs/performance.md); on an Intel processor torch's own choice stands. `Packed` does so on all.
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
    result: Tensor = product(x.reshape(-1, x.shape[-1]), weight, bias)
    return result.view(*x.shape[:-1], len(weight))


@cache
def has_onednn_on_amd() -> bool:
    """Whether this is an AMD processor, and torch's oneDNN has linear layers."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return False
    return "AuthenticAMD" in text and has_onednn()


def has_onednn() -> bool:
    """Whether torch has oneDNN's linear layers."""
    names = ("_linear_pointwise", "_reorder_linear_weight")
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in names
    )


class Packed:
    """A linear layer for inference on few rows, its weights laid out once as oneDNN reads them.

    Otherwise every product lays them out again, which for a few rows takes longer than the product.
    Later changes of the weights are not seen. It is torch's own layer on a GPU, in other kinds of
    numbers, under autocast, and where torch has no oneDNN.
    """

    # oneDNN chooses the same layout for all counts above one, and it is the faster one for one.
    _ROWS = 8

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight, self._bias = weight.detach(), None if bias is None else bias.detach()
        self._laid_out: Tensor | None = None
        if weight.device.type == "cpu" and weight.dtype == torch.float32 and has_onednn():
            reorder = torch.ops.mkldnn._reorder_linear_weight
            self._laid_out = reorder(self._weight.contiguous(), self._ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, channels] → [rows, out]."""
        plain = x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        if self._laid_out is None or not plain or x.numel() == 0:
            return F.linear(x, self._weight, self._bias)
        return _onednn(x, self._laid_out, self._bias)


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
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return result
