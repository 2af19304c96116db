"""Errors of memory and of broken GPUs are told apart; a process keeps the memory that it frees."""

from __future__ import annotations

import errno
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch

from cc_prep.devices import is_broken_device, is_out_of_memory


class AcceleratorError(RuntimeError):
    """As torch's is named."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate "
                     "memory: you tried to allocate 4 bytes. Error code 12"),
        cv2.error("OpenCV(4.12) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate"),
    ],
)  # fmt: skip
def test_out_of_memory(error: Exception) -> None:
    """Keeps away: five large pairs in a row that end a job, since their batch was not halved; and
    cuDNN 9's lack of memory, whose name begins like that of a GPU that failed."""
    assert is_out_of_memory(error)
    assert not is_broken_device(error)


def test_real_ones() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(2**60, np.uint8)
    assert is_out_of_memory(of_numpy.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        AcceleratorError("unspecified launch failure"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("No CUDA GPUs are available"),
    ],
)
def test_a_broken_gpu(error: Exception) -> None:
    assert is_broken_device(error)
    assert not is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
        ValueError("caption: CUDA error: out of memory"),
        cv2.error("OpenCV(4.12): error: (-215:Assertion failed) !_src.empty()"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_other_errors_are_neither(error: Exception) -> None:
    """Keeps away: a pair whose caption ends a worker."""
    assert not is_out_of_memory(error)
    assert not is_broken_device(error)


# Freed memory is seen by the pages that the kernel has to give anew.
SCRIPT = """
import resource, sys
from cc_prep.devices import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
import numpy as np
np.ones(2**22, np.float32)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(2**22, np.float32)  # 16 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(way: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, way], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is set on Linux alone")
def test_large_arrays_take_the_pages_of_those_before() -> None:
    assert faults("kept") < faults("plain") / 4
