"""Batches on their way to a GPU while it computes the step before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def ahead(steps: Iterator[list[Any]], device: str) -> Iterator[list[Any]]:
    """The batches of each step, on the device; those of the next one are copied meanwhile.

    On a CPU nothing is copied, and nothing is read earlier than it is asked for. The batches must
    be pinned for the copy not to wait for the device.
    """
    if device == "cpu":
        yield from steps
        return
    stream = torch.cuda.Stream()
    following = _copied(next(steps, None), stream)
    while following is not None:
        torch.cuda.current_stream().wait_stream(stream)
        batches = following
        _used_by(batches, torch.cuda.current_stream())
        following = _copied(next(steps, None), stream)
        yield batches


def _copied(batches: list[Any] | None, stream: torch.cuda.Stream) -> list[Any] | None:
    if batches is None:
        return None
    with torch.cuda.stream(stream):
        return [_on_gpu(batch) for batch in batches]


def _on_gpu(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _on_gpu(value) for name, value in batch.items()}
    return batch.to("cuda", non_blocking=True) if isinstance(batch, Tensor) else batch


def _used_by(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keeps the memory of copied tensors until this stream is done with them."""
    if isinstance(batch, Tensor):
        batch.record_stream(stream)
    elif isinstance(batch, (dict, list)):
        for value in batch.values() if isinstance(batch, dict) else batch:
            _used_by(value, stream)
