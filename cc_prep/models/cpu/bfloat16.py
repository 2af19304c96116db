"""Whether this processor computes in bfloat16, or emulates it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})  # of x86 processors


def is_native() -> bool:
    """Whether the processor multiplies bfloat16 itself, and torch has oneDNN for it.

    oneDNN calls all processors with AVX512 able, also those on which it emulates bfloat16, so on
    x86 under Linux the instructions decide. Elsewhere oneDNN's answer is taken.
    """
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return bool(able) and (not flags() or not INSTRUCTIONS.isdisjoint(flags()))


@cache
def flags() -> frozenset[str]:
    """The instructions that an x86 processor names under Linux; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
