"""The losses of what a renderer knows of a pair: the change, its places, all objects.

They are those of a `FactReader` and of batches of `OrderedPairBatches`. Nothing is asked of what is
not known.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cc_prep.settings import Section
from cc_train.data.supervision import SOLIDS, UNKNOWN, FactVocabulary
from cc_train.layers.pair_comparison import Changes, FactReader


class FactLosses(Section):
    """Weights of the losses of what a renderer knows; 0 leaves one out."""

    type: float = Field(1.5, ge=0)
    """Of the type of change."""
    attributes: float = Field(0.7, ge=0)
    """Of the attributes of the object that changed."""
    new_color: float = Field(0.5, ge=0)
    """Of its new color, and of the class of what it was replaced by."""
    location: float = Field(0.5, ge=0)
    """Of where it is, before and after."""
    objects: float = Field(0.5, ge=0)
    """Of the attributes of every object at its place."""
    centres: float = Field(2.5, ge=0)
    """Of where objects are."""

    def of_change(
        self, losses: Mapping[str, Tensor], vocabulary: FactVocabulary = SOLIDS
    ) -> Tensor:
        """The weighted sum of what `of_change` gives."""
        attributes, new = vocabulary.attributes, [f"new_{name}" for name in vocabulary.new]
        return (
            self.type * losses["type"]
            + self.attributes * torch.stack([losses[name] for name in attributes]).sum()
            # Data of which nothing gets a new value has no such fact.
            + self.new_color * sum((losses[name] for name in new), torch.zeros_like(losses["type"]))
        )

    def total(self, losses: Mapping[str, Tensor], vocabulary: FactVocabulary = SOLIDS) -> Tensor:
        """The weighted sum of what `losses` gives."""
        return (
            self.of_change(losses, vocabulary)
            + self.location * (losses["location_before"] + losses["location_after"])
            + self.objects * losses["objects"]
            + self.centres * losses["centres"]
        )


def denominators(
    batch: Mapping[str, Tensor], vocabulary: FactVocabulary = SOLIDS
) -> dict[str, Tensor]:
    """How many terms each loss has."""
    known = batch["facts"] != UNKNOWN
    return {
        **{name: known[:, i].sum() for i, name in enumerate(vocabulary.fact_names)},
        "location_before": (batch["places"][:, 0] != UNKNOWN).sum(),
        "location_after": (batch["places"][:, 1] != UNKNOWN).sum(),
        "objects": torch.tensor(len(batch["object_image"]), device=known.device),
        "cells": batch["has_objects"].sum() * batch["centres"].shape[1:].numel(),
    }


def losses(
    reader: FactReader,
    changes: Changes,
    images: Tensor,
    batch: Mapping[str, Tensor],
    counts: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """All losses, not yet weighted, each divided by its denominator.

    Args:
        images: Float [N, D, rows, columns], what `changes` compares pairs of; all objects are
            looked for in them.
    """
    result = of_change(changes.facts, batch["facts"], counts, reader.vocabulary)
    for i, name in enumerate(("location_before", "location_after")):
        places = (changes.before, changes.after)[i]
        result[name] = _cross_entropy(places, batch["places"][:, i]) / counts[name]
    result["objects"] = _objects(reader, images, batch) / counts["objects"]
    result["centres"] = _centres(reader, images, batch) / counts["cells"]
    return result


def of_change(
    logits: Tensor,
    facts: Tensor,
    counts: Mapping[str, Tensor],
    vocabulary: FactVocabulary = SOLIDS,
) -> dict[str, Tensor]:
    """The losses of the change itself, by name, of logits [P, sum of the `fact_classes`].

    Args:
        facts: Classes int64 [P, facts], UNKNOWN where nothing is asked.
    """
    parts = logits.split(vocabulary.fact_classes, dim=1)
    return {
        name: _cross_entropy(parts[i], facts[:, i]) / counts[name]
        for i, name in enumerate(vocabulary.fact_names)
    }


def _objects(reader: FactReader, images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Summed loss of the attributes of every object."""
    if not len(batch["object_image"]):
        return torch.zeros((), device=images.device)
    attributes = reader.attributes_at(images[batch["object_image"]], batch["object_location"])
    parts = attributes.split(reader.vocabulary.attribute_classes, dim=1)
    terms = [_cross_entropy(part, batch["object_attributes"][:, i]) for i, part in enumerate(parts)]
    return torch.stack(terms).sum()


def _centres(reader: FactReader, images: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Summed loss of whether an object's centre is at a place, over images that tell."""
    logits = reader.centre(images)[:, 0].float()
    terms = F.binary_cross_entropy_with_logits(logits, batch["centres"], reduction="none")
    return (terms * batch["has_objects"][:, None, None]).sum()


def _cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Summed over the rows whose class is known."""
    return F.cross_entropy(logits.float(), classes, ignore_index=UNKNOWN, reduction="sum")
