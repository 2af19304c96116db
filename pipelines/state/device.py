"""GPUs that turned out broken during a run."""

from __future__ import annotations

import os
import socket
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


class BrokenDevice(Exception):
    """In a worker: its GPU no longer works, whatever pair is put on it."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.device = this_device(error)
