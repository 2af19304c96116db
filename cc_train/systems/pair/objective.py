"""The objective of the pair captioner: captions, and facts of a renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from cc_train.captioner import CaptionModel
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.training import fact_losses, optim
from cc_train.training.caption_objective import CaptionObjective, right_words
from cc_train.training.fact_losses import FactLosses


class Losses(FactLosses):
    """Weights of the losses; 0 leaves one out."""

    caption: float = Field(1.0, ge=0)
    """Of the next word."""


class PairObjective(CaptionObjective):
    """`CaptionObjective` on `OrderedPairBatches`, with the losses of what a renderer knows.

    The loss of a caption is divided by its words.
    """

    network: PairCaptioner

    def __init__(
        self,
        network: PairCaptioner,
        score: Callable[[CaptionModel], dict[str, float]],
        weights: Losses,
        label_smoothing: float,
        weight_decay: float,
        device: str,
    ) -> None:
        super().__init__(network, score, label_smoothing, weight_decay, device)
        self.weights = weights

    def groups(self, phase: str) -> list[dict[str, Any]]:
        network = self.network
        trained = nn.ModuleDict(
            {"encoder": network.encoder, "bridge": network.bridge, "decoder": network.decoder}
        )
        groups = optim.param_groups([trained], self.weight_decay)
        return [*groups, {"params": [network.kinds], "weight_decay": 0.0}]

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        words = super().denominators(batch)["words"]
        vocabulary = self.network.encoder.vocabulary
        return {"words": words, **fact_losses.denominators(batch, vocabulary)}

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        network, weights = self.network, self.weights
        images = network.encoder.images(batch["features"])
        changes = network.encoder(images[batch["first"]], images[batch["second"]])
        logits = network.logits(batch["ids"], network.attended(changes))
        words = denominators["words"]
        caption = caption_loss(logits, batch["labels"], self.label_smoothing) / words
        facts = fact_losses.losses(network.encoder, changes, images, batch, denominators)
        return {
            "total": weights.caption * caption + weights.total(facts, network.encoder.vocabulary),
            "caption": caption,
            **facts,
            "word_accuracy": right_words(logits, batch["labels"]) / words,
        }
