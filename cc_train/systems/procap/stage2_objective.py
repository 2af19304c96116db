"""ProCap's stage 2: captions from two images and procedure queries.

The loss is that of any captioner, divided by captions (the reference does not divide). A captioner
with a comparison may also learn what a renderer knows of the pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cc_train.captioner import CaptionModel
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.procap.captioner import ProCap
from cc_train.systems.procap.frame_features import as_input
from cc_train.training import fact_losses, optim
from cc_train.training.caption_objective import CaptionObjective, right_words
from cc_train.training.fact_losses import FactLosses

UNUSED = ("to_logits.", "to_logits_rel.", "to_logits_vid.", "to_logits_local.", "rel_")


class Stage2Objective(CaptionObjective):
    """`CaptionObjective` with a learning rate of its own for the encoder.

    Args:
        encoder_lr_scale: Factor on the encoder's learning rate.
        freeze: The encoder is not trained.
        decay_norms: Only biases have no weight decay, as in the reference.
        loss_reduction: `sum` adds the losses of a micro-batch's captions up, as in the reference;
            micro-batches and processes are averaged.
        facts: Weights of the losses of what a renderer knows, on batches of `OrderedPairBatches`
            and for a captioner with a comparison; the caption's loss is then divided by its words,
            as the pair captioner's is.
    """

    network: ProCap

    def __init__(
        self,
        network: ProCap,
        score: Callable[[CaptionModel], dict[str, float]],
        *,
        label_smoothing: float,
        weight_decay: float,
        device: str,
        encoder_lr_scale: float,
        freeze: bool,
        decay_norms: bool,
        loss_reduction: str = "mean",
        facts: FactLosses | None = None,
    ) -> None:
        assert facts is None or network.comparison is not None
        super().__init__(network, score, label_smoothing, weight_decay, device)
        self.encoder_lr_scale, self.decay_norms = encoder_lr_scale, decay_norms
        self.loss_reduction, self.facts = loss_reduction, facts
        for name, parameter in network.encoder.named_parameters():
            parameter.requires_grad_(not freeze and not name.startswith(UNUSED))

    def groups(self, phase: str) -> list[dict[str, Any]]:
        network = self.network
        rest = nn.ModuleList([network.mlp, network.text_decoder])
        if network.comparison is not None:
            rest.extend([network.comparison, network.bridge])
        if network.skip is not None:
            rest.append(network.skip)
        parts: list[tuple[nn.Module, float]] = [
            (network.encoder, self.encoder_lr_scale),
            (rest, 1.0),
        ]
        groups = [
            {**group, "scale": scale}
            for module, scale in parts
            for group in optim.param_groups([module], self.weight_decay, self.decay_norms)
        ]
        if network.queries is not None:
            queries = {"params": [network.queries], "weight_decay": 0.0}
            groups.append({**queries, "scale": self.encoder_lr_scale})
        if network.comparison is not None:
            groups.append({"params": [network.kinds], "weight_decay": 0.0, "scale": 1.0})
        return [
            {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups
        ]

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        counts = super().denominators(batch)
        if self.loss_reduction == "sum":
            counts["captions"] = torch.ones_like(counts["captions"])
        if self.facts is None:
            return counts
        return {**counts, **fact_losses.denominators(_seen(batch))}

    def chunks(self, batch: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The batch, with what the encoder sees in `frames`: of both ends [B, 2, n, C], or of
        ordered pairs each image once, [N, n, C]. The frozen networks run outside of what is
        compiled."""
        others = {n: value for n, value in batch.items() if n not in ("features", "before_after")}
        if "features" in batch:
            frames = self.network.features(as_input(batch["features"][:, None]))[:, 0]
        else:
            frames = self.network.features(as_input(batch["before_after"]))
        return [{**others, "frames": frames}]

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The losses of a chunk, which `batch` is."""
        network = self.network
        embedded = network.encoder.embed(batch["frames"])
        if "first" in batch:
            embedded = embedded[torch.stack((batch["first"], batch["second"]), dim=1)]
        states = network.procedure_between(embedded)
        changes, before, after = None, *network.ends(states, embedded)
        if network.comparison is not None:
            changes = network.changes(before, after)
        logits = network.logits(batch["ids"], network.attended(states, changes))
        loss = caption_loss(logits, batch["labels"], self.label_smoothing)
        accuracy = right_words(logits, batch["labels"]) / denominators["words"]
        if self.facts is None or changes is None:
            return {"total": loss / denominators["captions"], "word_accuracy": accuracy}
        caption = loss / denominators["words"]
        assert network.comparison is not None
        images = torch.cat((before, after))
        known = fact_losses.losses(network.comparison, changes, images, _seen(batch), denominators)
        return {
            "total": caption + self.facts.total(known),
            "caption": caption,
            **known,
            "word_accuracy": accuracy,
        }


def _seen(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The facts of images, repeated for each pair that shows an image: [2P] and their objects.

    The states of an image differ from pair to pair, since the encoder sees both images at once.
    """
    shown = torch.cat((batch["first"], batch["second"]))
    places, objects = torch.nonzero(shown[:, None] == batch["object_image"], as_tuple=True)
    return {
        "facts": batch["facts"],
        "places": batch["places"],
        "object_image": places,
        "object_location": batch["object_location"][objects],
        "object_attributes": batch["object_attributes"][objects],
        "centres": batch["centres"][shown],
        "has_objects": batch["has_objects"][shown],
    }
