"""What a trainer trains: networks, their losses and how they are validated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from cc_train.runs.checkpoints import Criterion


class Objective(ABC):
    """What is trained.

    Args:
        network: What is exported. Checkpoints hold its `state_dict`, so a network with a large
            frozen part, such as a language model with adapters, overrides `state_dict` and
            `load_state_dict` and stores what it trains.
        others: Networks that only training needs.
        buffers: Tensors besides parameters that training must remember.
        phases: Each has its own optimiser and its own backward pass in every step, in this order.
        criterion: Picks the best checkpoint.
        over: What the losses are taken over. `sum`: terms of samples, divided by the `denominators`
            of the whole step, so that any division into micro-batches and processes gives the same
            step. `batch`: all samples of a step at once, as a contrastive loss: there is one
            micro-batch, and on several processes the objective gathers (`Ranks.gather`) what it
            compares. An objective that adds both kinds says `batch`, and divides its sums by their
            denominators.
    """

    network: nn.Module
    criterion: Criterion
    phases: tuple[str, ...] = ("model",)
    over: Literal["sum", "batch"] = "sum"

    def __init__(self, network: nn.Module) -> None:
        self.network = network
        self.others: dict[str, nn.Module] = {}
        self.buffers: dict[str, Tensor] = {}

    @property
    def all_parameters_used(self) -> bool:
        """Whether each has a gradient in every step; else DDP looks for unused ones, slowly."""
        return False

    @abstractmethod
    def groups(self, phase: str) -> list[dict[str, Any]]:
        """Parameter groups that the phase's optimiser updates."""

    def denominators(self, batch: Any) -> dict[str, Tensor]:
        """How many terms the sums of a batch's losses have, by name; scalars.

        Empty where all losses are over a whole batch.
        """
        return {}

    def chunks(self, batch: Any) -> Sequence[Any]:
        """Parts of a batch with a backward pass of their own, for less memory; mostly one."""
        return [batch]

    @abstractmethod
    def losses(
        self, phase: str, batch: Any, step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Scalars by name, of a chunk; `total` is minimised, the others are logged.

        Args:
            denominators: Those of the whole step, over all micro-batches and ranks.
        """

    def after_step(self, step: int) -> None:  # noqa: B027, most have nothing to do
        """Called when all phases of a step are over."""

    @abstractmethod
    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        """Figures on held-out data, and a picture uint8 [H, W, 3] where there is one.

        Called on all ranks, which may share the work; those of the first one count.
        """
