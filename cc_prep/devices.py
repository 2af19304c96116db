"""CPUs and GPUs: how a process sets them up, and what their errors mean.

Nothing here imports torch before a function needs it.
"""

from __future__ import annotations

import ctypes
import errno
import sys
from typing import Protocol

# Of <malloc.h>; mallopt(3) has their meaning. No memory by mmap, none given back to the kernel, and
# one arena: what a thread of its own has freed, no other can take.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX, ARENA_MAX = -1, -2, -4, -8
SETTINGS = {MMAP_MAX: 0, TRIM_THRESHOLD: -1, TOP_PAD: 2**26, ARENA_MAX: 1}

# For a process whose networks run in a thread that was there before, as Ray Data's workers do: it
# has an arena already, which is unmapped when it is empty, whatever is set above. Read when a
# process starts.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}


def keep_freed_memory() -> None:
    """For the rest of the process, keeps what is freed.

    Otherwise every large tensor goes back to the kernel, and the next one's pages are faulted in
    and cleared again: a seventh of a network's time (benchmarks/results/notes/performance.md). Does
    nothing where the C library is another.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for setting, value in SETTINGS.items():
            mallopt(setting, value)


def set_tf32(allowed: bool) -> None:
    """Whether a GPU may round the factors of float32 products and convolutions to TF32's 10 bits.

    It does neither with False, so float32 means the same as on a CPU. Without this call torch's
    default counts, which has convolutions in TF32 and products not.
    """
    import torch

    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


class ThreadSettings(Protocol):
    """A section of the manifest with networks."""

    @property
    def threads(self) -> int: ...
    @property
    def tf32(self) -> bool: ...


def use(settings: ThreadSettings, device: str) -> None:
    """Applies the torch settings of a section of the manifest to all that follows."""
    use_threads(settings.threads, settings.tf32 and device != "cpu")


def use_threads(count: int, tf32: bool = False) -> None:
    """Sets the number of threads: float sums depend on it, so the manifest fixes it.

    Args:
        tf32: As `allowed` of `set_tf32`.
    """
    import torch

    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    # As use_deterministic_algorithms, which also imports the compiler: a second of processor time.
    torch.set_deterministic_debug_mode("warn")
    set_tf32(tf32)
    # Or every new tensor is first filled with NaN: a fortieth of a network's time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


# Libraries have no common type for errors of memory and devices: some are known by their texts.
# Of RuntimeError (torch, cuBLAS, cuDNN) and of cv2.error.
OUT_OF_MEMORY = (
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    # As cuDNN 9 says it.
    "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "CUFFT_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Insufficient memory",
)
BROKEN = (
    "CUDA error:",
    "CUDA driver error:",
    "HIP error:",
    "CUBLAS_STATUS_EXECUTION_FAILED",
    "CUBLAS_STATUS_INTERNAL_ERROR",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "CUDNN_STATUS_EXECUTION_FAILED",
    "CUDNN_STATUS_INTERNAL_ERROR",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "No CUDA GPUs are available",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory, of the machine or of a GPU, did not suffice."""
    # torch's type by name: a worker without torch must not import it to find out.
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return _is_of_a_library(error) and any(text in str(error) for text in OUT_OF_MEMORY)


def is_broken_device(error: BaseException) -> bool:
    """Whether a GPU failed, so that nothing more runs on it in this process.

    After an illegal memory access, an ECC error or a failed launch every later call fails too.
    """
    if is_out_of_memory(error) or not _is_of_a_library(error):
        return False
    return type(error).__name__ == "AcceleratorError" or any(text in str(error) for text in BROKEN)


def _is_of_a_library(error: BaseException) -> bool:
    # cv2.error is an Exception and nothing more special.
    return isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] == "cv2"
