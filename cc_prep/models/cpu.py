"""What makes networks faster on a CPU: images side by side, other products, other attention.

Networks are made of torch's own layers, and `use_kernels` gives them these kernels. Results differ
from torch's by what float32 sums round. On another device, in other kinds of numbers, or where
torch lacks a kernel, each of these is torch's own. Figures:
benchmarks/results/notes/performance.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from cc_prep.devices import is_out_of_memory

PRIVATE = ("_nnpack_available", "_nnpack_spatial_convolution")  # which another torch may lack
PIXELS_AT_ONCE = 2**22  # of frames on a GPU: a layer of 128 channels then takes 2 GB
# Of a convolution's input: with fewer NNPACK is no faster, as it transforms the weights each time.
MIN_CHANNELS = 64

Network = TypeVar("Network", bound=nn.Module)


def use_kernels(network: Network, only_infers: bool = False) -> Network:
    """Gives the layers of a network on a CPU faster kernels, and returns it.

    To be called once it has its weights, which must not be replaced after. Linear layers become
    `Linear`, and what a module's class names as its function for products, attention or large
    convolutions is replaced. Without `only_infers`, linear layers that do not learn stay as they
    are: those of a frozen backbone inside a captioner are to give what the shards hold.

    Args:
        only_infers: It will have no gradients, no autocast and float32 alone. Then products are
            torch's operators, without a look at each input.
    """
    if any(parameter.device.type != "cpu" for parameter in network.parameters()):
        return network
    onednn = has_onednn_on_amd()
    halves = has_bfloat16_products() and not only_infers
    layer: Any  # whose class says what it has
    for layer in network.modules():
        kind = type(layer)
        if onednn and kind is nn.Linear:
            if only_infers:
                layer.forward = _onednn_operator(W=layer.weight, B=layer.bias)
            elif layer.weight.requires_grad:
                layer.__class__ = Linear
        if onednn and getattr(kind, "linear", None) is F.linear:
            layer.linear = _onednn_operator() if only_infers else linear
        if halves and getattr(kind, "attend", None) is F.scaled_dot_product_attention:
            layer.attend = attention
        if hasattr(kind, "of_large_images") and layer.in_channels >= MIN_CHANNELS:
            layer.of_large_images = _nnpack()
    return network


def image_by_image(
    network: Callable[[Tensor], Tensor], images: Tensor, enlarged: int = 1
) -> Tensor:
    """`network(images)` [N, ...] without gradients; on a CPU each image alone, on one thread.

    On a GPU as many images together as have PIXELS_AT_ONCE, fewer where memory does not suffice.

    On a CPU as many images at once as torch has threads. So an image's result depends on nothing
    but the image, and its tensors fit a processor's caches better than a batch's. Callers may be in
    autocast. torch.compile and modes that count operations cannot follow threads: they get one
    image after the other.

    Args:
        enlarged: How many times longer a side becomes in the network.
    """
    if images.device.type != "cpu":
        with torch.no_grad():
            return _in_chunks(network, images, enlarged)
    parts = [image.contiguous() for image in images.split(1)]  # or each NNPACK layer copies
    if torch.compiler.is_compiling() or is_in_torch_dispatch_mode():
        with torch.no_grad():
            return torch.cat([network(image) for image in parts])
    if torch.is_autocast_enabled("cpu"):  # of the caller's thread alone
        network = partial(_under_autocast, network, torch.get_autocast_dtype("cpu"))
    threads = _threads(torch.get_num_threads(), os.getpid())
    return torch.cat(list(threads.map(network, parts)))


def _under_autocast(
    network: Callable[[Tensor], Tensor], dtype: torch.dtype, images: Tensor
) -> Tensor:
    with torch.autocast("cpu", dtype):
        return network(images)


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
    """Threads on each of which torch has one, and makes no gradients.

    Args:
        process: A forked one has none of its parent's.
    """
    started = Barrier(count + 1)

    def start() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # or the first layer would set what the process has
        torch.set_grad_enabled(False)
        started.wait()

    pool = ThreadPoolExecutor(count, "image", start)
    for _ in range(count):
        pool.submit(int)
    started.wait()
    torch.set_num_threads(count)  # of this thread, and of those to come
    return pool


@cache
def _nnpack() -> Callable[..., Tensor] | None:
    """NNPACK's convolution, if this torch and this processor have it.

    Its algorithm takes 64 multiplications a channel for 6×6 outputs, where the sums as they are
    written take 324 (Lavin and Gray, CVPR 2016). Its results are off by up to 1e-4 where they are
    about 1: fifty times what torch's own are, a twentieth of what inputs rounded as a GPU's TF32
    make of it.
    """
    if not all(hasattr(torch, name) for name in PRIVATE) or not torch._nnpack_available():
        return None
    # Its first call makes its threads, as many as torch has then, for the rest of the process. They
    # and OpenMP's would wait for each other by spinning.
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._nnpack_spatial_convolution(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 3, 3), None, 1)
    torch.set_num_threads(count)
    return torch._nnpack_spatial_convolution


class Linear(nn.Linear):
    """`nn.Linear`, computed by `linear`: on an AMD processor by oneDNN, which comes with torch.

    There MKL's products, which torch takes, are an eighth to a quarter slower than oneDNN's; on an
    Intel processor torch's own choice stands.
    """

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


def _onednn_operator(**weights: Tensor) -> Callable[..., Tensor]:
    """`_onednn` as torch's operator, of these weights where some are given."""
    operator = torch.ops.mkldnn._linear_pointwise.default
    return partial(operator, attr="none", scalars=[], algorithm="", **weights)


# Scores are kept for the backward pass, which the fused kernel recomputes. Above this size that
# memory is worth more than the time.
MAX_SCORES = 2**25


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """`F.scaled_dot_product_attention` of [B, heads, L, D] and [B, heads, M, D].

    In bfloat16 on an x86 processor that has its products: two of oneDNN's, in less than half of the
    time. On AMD's torch's fused kernel takes MKL's, which copies and computes in float32; on
    Intel's its backward pass is slow.

    Args:
        mask: Bool that spreads to [B, heads, L, M], at least one True in each row; or numbers that
            are added to the scores. In bfloat16 on such a processor, scores are rounded to it, and
            kept for the backward pass.
    """
    scores = math.prod(query.shape[:-1]) * key.shape[-2]  # numel() makes an exported batch fixed
    if (
        query.dtype != torch.bfloat16
        or query.device.type != "cpu"
        or scores > MAX_SCORES
        or torch.compiler.is_compiling()
        or not has_bfloat16_products()
    ):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    products = torch.matmul(query * query.shape[-1] ** -0.5, key.mT)
    if mask is not None:
        products = products + (additive(mask) if mask.dtype == torch.bool else mask).to(query.dtype)
    mixed: Tensor = torch.matmul(products.softmax(-1).to(value.dtype), value)
    return mixed


def additive(mask: Tensor) -> Tensor:
    """0 where a bool mask is True and −∞ elsewhere, float32: what is added to scores."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, float("-inf"))


@cache
def has_bfloat16_products() -> bool:
    """Whether this is an x86 processor that multiplies bfloat16, under Linux, with oneDNN."""
    return bool(instructions()) and has_bfloat16()


BFLOAT16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16"})  # of x86 processors


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself, and torch has oneDNN for it.

    oneDNN calls all processors with AVX512 able, also those on which it emulates bfloat16, so on
    x86 under Linux the instructions decide. Elsewhere oneDNN's answer is taken.
    """
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    known = instructions()
    return bool(able) and (not known or not BFLOAT16_INSTRUCTIONS.isdisjoint(known))


@cache
def instructions() -> frozenset[str]:
    """The instructions that an x86 processor names under Linux; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    line = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
