"""What a system says of its networks, so that they can be written as ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class Graph:
    """A network as one graph.

    Attributes:
        network: Takes the inputs in their order, and gives the outputs.
        inputs: An example of each, by name, of at least three pairs.
        outputs: Names of what it gives.
        free: Axes of each input that may have any length, with a name for that length; of inputs
            that are not in it, the first.
    """

    network: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    free: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Graphs:
    """A captioner as graphs.

    Attributes:
        graphs: By the name of their file, without its ending.
        about: What a program needs besides, as JSON.
        page: Whether the page of `sharing/onnx_page` can caption with them.
    """

    graphs: Mapping[str, Graph]
    about: Mapping[str, Any]
    page: bool = False
