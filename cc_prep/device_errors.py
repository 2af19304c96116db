"""Which errors mean that memory ran out, and which that a GPU no longer works.

Libraries have no common type for either, so some errors are known by their texts alone.
"""

from __future__ import annotations

import errno

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
