"""What the pair captioner learns from: captions, and what a renderer knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_prep.settings import Section
from cc_train.captioner import Captioner
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.supervision import FACT_CLASSES, LOOK_CLASSES, UNKNOWN
from cc_train.training import optim
from cc_train.training.caption_objective import CaptionObjective, right_words

FACT_NAMES = ("type", "color", "shape", "material", "size", "new_color")


class Losses(Section):
    """Weights of the losses; 0 leaves one out.

    type, looks, new_color: of the change. place: where it is, before and after. objects: looks of
    every object at its place. centres: where objects are. caption: of the next word.
    """

    caption: float = Field(1.0, ge=0)
    type: float = Field(1.5, ge=0)
    looks: float = Field(0.7, ge=0)
    new_color: float = Field(0.5, ge=0)
    place: float = Field(0.5, ge=0)
    objects: float = Field(0.5, ge=0)
    centres: float = Field(2.5, ge=0)


class PairObjective(CaptionObjective):
    """`CaptionObjective` on batches of `PairBatches`, with the losses of what a renderer knows.

    The loss of a caption is divided by its words.
    """

    network: PairCaptioner

    def __init__(
        self,
        network: PairCaptioner,
        score: Callable[[Captioner], dict[str, float]],
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
        known = batch["facts"] != UNKNOWN
        return {
            "words": super().denominators(batch)["words"],
            **{name: known[:, i].sum() for i, name in enumerate(FACT_NAMES)},
            "place_before": (batch["places"][:, 0] != UNKNOWN).sum(),
            "place_after": (batch["places"][:, 1] != UNKNOWN).sum(),
            "objects": torch.tensor(len(batch["object_image"]), device=known.device),
            "cells": batch["has_objects"].sum() * batch["centres"][0].numel(),
        }

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        network, weights = self.network, self.weights
        images = network.encoder.images(batch["features"])
        changes = network.encoder(images[batch["first"]], images[batch["second"]])
        logits = network.logits(batch["ids"], network.attended(changes))
        words = denominators["words"]
        losses = {"caption": caption_loss(logits, batch["labels"], self.label_smoothing) / words}
        parts = changes.facts.split(FACT_CLASSES, dim=1)
        for i, name in enumerate(FACT_NAMES):
            losses[name] = _cross_entropy(parts[i], batch["facts"][:, i]) / denominators[name]
        for i, name in enumerate(("place_before", "place_after")):
            places = (changes.before, changes.after)[i]
            losses[name] = _cross_entropy(places, batch["places"][:, i]) / denominators[name]
        losses["objects"] = self._objects(images, batch) / denominators["objects"]
        losses["centres"] = self._centres(images, batch) / denominators["cells"]
        looks = sum(losses[name] for name in ("color", "shape", "material", "size"))
        total = (
            weights.caption * losses["caption"]
            + weights.type * losses["type"]
            + weights.looks * looks
            + weights.new_color * losses["new_color"]
            + weights.place * (losses["place_before"] + losses["place_after"])
            + weights.objects * losses["objects"]
            + weights.centres * losses["centres"]
        )
        return {
            "total": total,
            **losses,
            "word_accuracy": right_words(logits, batch["labels"]) / words,
        }

    def _objects(self, images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Summed loss of the looks of every object."""
        if not len(batch["object_image"]):
            return torch.zeros((), device=images.device)
        looks = self.network.encoder.looks_at(images[batch["object_image"]], batch["object_place"])
        parts = looks.split(LOOK_CLASSES, dim=1)
        terms = [_cross_entropy(part, batch["object_looks"][:, i]) for i, part in enumerate(parts)]
        return torch.stack(terms).sum()

    def _centres(self, images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """Summed loss of whether an object's centre is at a place, over images that tell."""
        logits = self.network.encoder.centre(images)[:, 0].float()
        terms = F.binary_cross_entropy_with_logits(logits, batch["centres"], reduction="none")
        return (terms * batch["has_objects"][:, None, None]).sum()


def _cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Summed over the rows whose class is known."""
    return F.cross_entropy(logits.float(), classes, ignore_index=UNKNOWN, reduction="sum")
