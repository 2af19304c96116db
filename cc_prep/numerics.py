"""What float32 means on a GPU."""

from __future__ import annotations


def set_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of float32 products and convolutions to TF32's 10 bits.

    It does neither with False, so float32 means the same as on a CPU. Without this call torch's
    default counts, which has convolutions in TF32 and products not.
    """
    import torch  # here, for those who only import the pipelines

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
