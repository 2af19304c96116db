"""Training any captioner of an encoder and a decoder on its captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.models.cpu import use_kernels
from cc_train.captioner import CaptionModel, EncoderDecoder
from cc_train.evaluation.validation import CRITERION
from cc_train.layers.caption_loss import caption_loss
from cc_train.text import IGNORED
from cc_train.training import optim
from cc_train.training.objective import Objective


class CaptionObjective(Objective):
    """The loss of the next word.

    A batch is one of `CaptionBatches`. The loss is summed over words and divided by captions.

    Args:
        score: A captioner in evaluation mode → its metrics by name.
    """

    network: EncoderDecoder
    criterion = CRITERION

    def __init__(
        self,
        network: EncoderDecoder,
        score: Callable[[CaptionModel], dict[str, float]],
        label_smoothing: float,
        weight_decay: float,
        device: str,
    ) -> None:
        super().__init__(use_kernels(network.to(device)))
        self.score, self.label_smoothing, self.weight_decay = score, label_smoothing, weight_decay

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return optim.param_groups([self.network], self.weight_decay)

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        labels = batch["labels"]
        captions = torch.tensor(len(labels), device=labels.device)
        return {"captions": captions, "words": (labels != IGNORED).sum()}

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        logits = self.network(batch["before_after"], batch["ids"])
        loss = caption_loss(logits, batch["labels"], self.label_smoothing)
        right = right_words(logits, batch["labels"])
        return {
            "total": loss / denominators["captions"],
            "word_accuracy": right / denominators["words"],
        }

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, EncoderDecoder)
        return self.score(network), None


def right_words(logits: Tensor, labels: Tensor) -> Tensor:
    """How often the likeliest word, of logits [B, L, words], is the label, of int64 [B, L]."""
    return (logits.detach().argmax(-1) == labels).sum()  # IGNORED is never the likeliest
