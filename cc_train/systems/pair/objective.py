"""The objective of the pair captioner: captions, and facts of a renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from cc_train.captioner import CaptionModel
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.pair import several
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.several import SeveralCaptioner
from cc_train.training import fact_losses, optim
from cc_train.training.caption_objective import CaptionObjective, right_words
from cc_train.training.fact_losses import FactLosses


class Losses(FactLosses):
    """Weights of the losses; 0 leaves one out."""

    caption: float = Field(1.0, ge=0)
    """Of the next word; not of a captioner with a map of changes."""
    changes: float = Field(1.0, ge=0)
    """Of where each change is, and of what type, for a captioner with a map of changes."""

    def of_changes(self, losses: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of what `several.losses` gives."""
        return (
            self.changes * losses["changes"]
            + self.attributes * losses["changed_attributes"]
            + self.location * losses["counterparts"]
            + self.new_color * losses["new_values"]
        )


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
        if isinstance(network, SeveralCaptioner):
            trained = nn.ModuleDict({"encoder": network.encoder, "map": network.change_map})
            return optim.param_groups([trained], self.weight_decay)
        groups = optim.param_groups([trained], self.weight_decay)
        return [*groups, {"params": [network.kinds], "weight_decay": 0.0}]

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        words = super().denominators(batch)["words"]
        vocabulary = self.network.encoder.vocabulary
        counts = {"words": words, **fact_losses.denominators(batch, vocabulary)}
        if isinstance(self.network, SeveralCaptioner):
            counts |= several.denominators(batch)
        return counts

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        network, weights = self.network, self.weights
        images = network.encoder.images(batch["features"])
        changes = network.encoder(images[batch["first"]], images[batch["second"]])
        if isinstance(network, SeveralCaptioner):
            known = fact_losses.losses(network.encoder, changes, images, batch, denominators)
            of_map = several.losses(network, changes.grid, images, batch, denominators)
            total = weights.total(known, network.encoder.vocabulary) + weights.of_changes(of_map)
            return {"total": total, **known, **of_map}
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
