"""A thread for each image, in which NNPACK's 3×3 convolutions are fast.

Winograd's algorithm makes a tile of 6×6 outputs with 64 multiplications a channel where the sums,
as they are written, take 324. NNPACK, which torch carries, has it for a CPU; but its threads and
OpenMP's wait for each other by spinning, so it is fast only where an image has one thread, and the
images go through the network side by side.
Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, local

import torch
from torch import Tensor

from cc_prep.device_errors import is_out_of_memory

PRIVATE = ("_nnpack_available", "_nnpack_spatial_convolution")  # which another torch may lack
PIXELS_AT_ONCE = 2**22  # of frames on a GPU: a layer of 128 channels then takes 2 GB

thread = local()  # .alone: whether it has one image and NNPACK, and no other thread helps it


def image_by_image(
    network: Callable[[Tensor], Tensor], images: Tensor, enlarged: int = 1
) -> Tensor:
    """`network(images)` [N, ...] without gradients; on a CPU each image alone, on one thread.

    On a GPU as many images together as have PIXELS_AT_ONCE, fewer where memory does not suffice.

    On a CPU as many images at once as torch has threads. So an image's result depends on nothing
    but the image, and its tensors fit a processor's caches better than a batch's. Callers may be in
    autocast. torch.compile, which cannot follow threads, gets one image after the other.

    Args:
        enlarged: How many times longer a side becomes in the network.
    """
    if images.device.type != "cpu":
        with torch.no_grad():
            return _in_chunks(network, images, enlarged)
    parts = images.split(1)
    if torch.compiler.is_compiling():
        with torch.no_grad():
            return torch.cat([network(image) for image in parts])
    autocast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu")

    def work(image: Tensor) -> Tensor:
        # Both are a thread's own.
        with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
            return network(image.contiguous())  # as NNPACK wants it: else each layer copies

    threads = _threads(torch.get_num_threads(), os.getpid())
    return torch.cat(list(threads.map(work, parts)))


def _in_chunks(network: Callable[[Tensor], Tensor], images: Tensor, enlarged: int = 1) -> Tensor:
    """Raises the device's error where not even one image fits."""
    if torch.compiler.is_compiling():
        return network(images)
    height, width = (side * enlarged for side in images.shape[2:])
    most = max(1, PIXELS_AT_ONCE // (height * width))
    results: list[Tensor] = []
    start = 0
    while start < len(images):
        chunk = images[start : start + most]
        result = _unless_too_large(network, chunk)
        if result is None:
            most = (len(chunk) + 1) // 2
            torch.cuda.empty_cache()
            continue
        results.append(result)
        start += len(chunk)
    return results[0] if len(results) == 1 else torch.cat(results)


def _unless_too_large(network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor | None:
    """None where memory does not suffice for several images."""
    try:
        return network(images)
    except Exception as error:
        if len(images) == 1 or not is_out_of_memory(error):
            raise
        return None


@cache
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    """Threads on each of which torch has one. process: a forked one has none of its parent's."""
    started = Barrier(count + 1)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # or the first layer would set what the process has
        thread.alone = nnpack
        started.wait()

    torch.set_num_threads(1)
    nnpack = _ready()
    pool = ThreadPoolExecutor(count, "image", start)
    for _ in range(count):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(count)  # of this thread, and of those to come
    return pool


@cache
def _ready() -> bool:
    """Whether this torch and this processor have NNPACK.

    Its first call makes its threads, as many as torch has then, for the rest of the process.
    """
    if not all(hasattr(torch, name) for name in PRIVATE) or not torch._nnpack_available():
        return False
    torch._nnpack_spatial_convolution(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 3, 3), None, 1)
    return True
