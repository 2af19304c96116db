"""What torch computes with: threads, on which sums depend, and what float32 means on a GPU."""

from __future__ import annotations


def set_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of float32 products and convolutions to TF32's 10 bits.

    It does neither with False, so float32 means the same as on a CPU. Without this call torch's
    default counts, which has convolutions in TF32 and products not.
    """
    import torch  # here, for those who only import the pipelines

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def use_threads(count: int, tf32: bool = False) -> None:
    """Sets the number of threads: float sums depend on it, so the manifest fixes it.

    tf32: as `allowed` of `set_tf32`.
    """
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    # As use_deterministic_algorithms, which also imports the compiler: a second of processor time.
    torch.set_deterministic_debug_mode("warn")
    set_tf32(tf32)
    # Or every new tensor is first filled with NaN: a fortieth of a network's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
