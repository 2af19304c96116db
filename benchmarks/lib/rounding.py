"""Stand-ins for processors that round otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Sums, whose order is the processor's, and functions, of which each library has its own.
_ROUNDED = ("mm", "linear", "conv", "attention", "softmax", "norm", "sum", "mean", "exp", "gelu")
_SMALLEST = 0x01000000  # the bits of about 2e-38; zeros stay zeros


class OtherRounding(TorchDispatchMode):
    """Adds -2 to 1 units in the last place to float32 results of sums and functions.

    What is added follows from the result's own bits and the seed, so that the same computation
    gives the same bits again, as it does on a real processor. Of gradients it is added, too.

    Args:
        seed: Which processor.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._salt = (2 * seed + 1) * 0x9E3779B1 % 2**31

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        if any(part in func.name() for part in _ROUNDED):
            for result in results if isinstance(results, (tuple, list)) else (results,):
                if isinstance(result, torch.Tensor) and result.dtype == torch.float32:
                    self._round(result)
        return results

    def _round(self, result: torch.Tensor) -> None:
        # What oneDNN laid out its own way cannot be read.
        if result.is_mkldnn or not result.is_contiguous() or result.numel() == 0:
            return
        bits = result.view(torch.int32)
        # A hash by multiplications that overflow; its two highest bits are -2 to 1.
        noise = (((bits * 0x2545F491) ^ self._salt) * 0x27D4EB2F) >> 30
        bits.add_(noise.mul_((bits & 0x7FFFFFFF) > _SMALLEST))
