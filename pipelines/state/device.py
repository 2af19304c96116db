"""The GPU of a worker: its model, and whether it turned out broken during a run."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU, or the share of one, that Ray assigned to a worker.

    Attributes:
        gpus: CUDA_VISIBLE_DEVICES of the worker.
        error: The error with which the GPU failed.
    """

    host: str
    gpus: str
    error: str = ""

    def __str__(self) -> str:
        return f"GPU {self.gpus} of {self.host} ({self.error})"


def this_device(error: str = "") -> Device:
    """The GPU of this worker."""
    return Device(socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), error)


def gpu_model() -> str:
    """Name of this worker's GPU; empty if no imported module has used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    name: str = torch.cuda.get_device_name()
    return name


class BrokenDevice(Exception):
    """Raised in a worker: its GPU no longer works, whatever pair it gets."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.device = this_device(error)
