"""The GPU of a worker: its model, and whether it turned out broken during a run."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """A GPU, or the part of one, that Ray lent to a worker. gpus: as Ray numbers those of a node.

    error: what it failed with.
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
    """Of this worker; empty where nothing that was imported has used a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return ""
    name: str = torch.cuda.get_device_name()
    return name


class BrokenDevice(Exception):
    """In a worker: its GPU no longer works, whatever pair is put on it."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.device = this_device(error)
