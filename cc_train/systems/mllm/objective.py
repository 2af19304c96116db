"""The objective of a multi-modal language model: captions, and control of attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.captioner import CaptionModel, text_only
from cc_train.evaluation.validation import CRITERION
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.mllm import attention_loss, attention_tap, families
from cc_train.systems.mllm.attention_tap import Rows, Tap
from cc_train.systems.mllm.batches import AttentionControl
from cc_train.systems.mllm.captioner import MllmCaptioner, first_rows
from cc_train.systems.mllm.grid_features import SeeingLanguageModel
from cc_train.text import IGNORED
from cc_train.training.caption_objective import right_words
from cc_train.training.objective import Objective

NO_GRADIENT = (
    "the attention that is to be controlled has no gradient, so the loss would train nothing"
)


class MllmObjective(Objective):
    """The `Objective`: the loss of the next word and, if set, the loss of attention.

    Args:
        connector_rate: The learning rate of the connector of a language model of text as a multiple
            of that of the adapters. Adapters of a connector that a base model has of its own do not
            get it.
    """

    network: MllmCaptioner
    criterion = CRITERION

    def __init__(
        self,
        network: MllmCaptioner,
        score: Callable[[CaptionModel], dict[str, float]],
        control: AttentionControl,
        weight_decay: float,
        connector_rate: float,
        device: str,
    ) -> None:
        super().__init__(network.to(device))
        self.score, self.control = score, control
        self.weight_decay, self.connector_rate = weight_decay, connector_rate
        self.tap = _tap(network, control)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                place = ".connector." in name, parameter.ndim > 1 and not _is_spared(name)
                groups.setdefault(place, []).append(parameter)
        own = isinstance(self.network.model, SeeingLanguageModel)
        if not groups:
            raise UserError("nothing is to be trained", "Set a rank of lora above 0")
        return [
            {
                "params": parameters,
                "weight_decay": self.weight_decay if decays else 0.0,
                "scale": self.connector_rate if own and in_connector else 1.0,
            }
            for (in_connector, decays), parameters in groups.items()
        ]

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        counts = {"words": (batch["labels"] != IGNORED).sum()}
        return counts | ({"masked": batch["has_mask"].sum()} if self.control.is_on else {})

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        logits_to_keep = batch["ids"].shape[1] - int(batch["last"].min())
        if self.tap is not None:
            attention_tap.attach(self.tap)
            self.tap.take()  # what a checkpointed layer left in the last backward pass
            self.tap.queries = batch["last"][:, None]
        output = self.network(batch, logits_to_keep)
        labels = batch["labels"][:, -logits_to_keep:]
        words = denominators["words"]
        caption = caption_loss(output.logits, labels, 0.0) / words
        losses = {
            "total": caption,
            "caption": caption.detach(),
            "word_accuracy": right_words(output.logits, labels) / words,
        }
        if self.control.is_on:
            attention, inside = self._attention(batch, output)
            losses["attention"] = attention.detach() / denominators["masked"]
            losses["inside"] = inside / denominators["masked"]
            if bool(batch["has_mask"].any()):
                share = self.control.weight / denominators["masked"]
                losses["total"] = losses["total"] + share * attention
        return losses

    def _attention(self, batch: Mapping[str, Tensor], output: Any) -> tuple[Tensor, Tensor]:
        """The loss of attention of both images, and the share of attention inside the mask (a mean
        over the images), both summed over pairs with a mask."""
        seen = self._looked(batch, output)
        has_mask, total = batch["has_mask"], output.logits.new_zeros((), dtype=torch.float32)
        inside = torch.zeros_like(total)
        if torch.is_grad_enabled() and not seen[0].probabilities.requires_grad:
            raise UserError(
                NO_GRADIENT,
                "Give adapters to the layers before it (lora.vision, lora.bridge, lora.language), "
                "and do not checkpoint by re-entry",
            )
        for rows in seen:
            chosen = Rows(rows.probabilities[has_mask], rows.scores[has_mask])
            mask = batch["mask"][has_mask]
            total = total + attention_loss.control(chosen, mask, self.control.form).sum()
            share = attention_loss.share_inside(chosen.probabilities.detach(), mask)
            inside = inside + share.sum() / len(seen)
        return total, inside

    def _looked(self, batch: Mapping[str, Tensor], output: Any) -> list[Rows]:
        """Attention over the places of each image, row by row: [B, P] for each."""
        network = self.network
        if self.tap is None:  # the connector says itself where it looked
            return [Rows(one.probabilities[:, 0], one.scores[:, 0]) for one in output.looked]
        rows = first_rows(self.tap.take())
        if self.control.where == "llm":
            places = network.places(batch["ids"])
            return [attention_loss.of_places(rows, one) for one in places.unbind(1)]
        before_class = int(network.base.family.reading == "cls")
        slots = network.shape.slots.to(rows.scores.device) + before_class
        flat = attention_loss.of_places(rows, slots.expand(len(rows.scores), -1))
        return [
            Rows(flat.probabilities[number :: network.shape.images],
                 flat.scores[number :: network.shape.images])
            for number in range(network.shape.images)
        ]  # fmt: skip

    def after_step(self, step: int) -> None:
        if self.tap is not None:  # all backward passes are over
            attention_tap.detach(self.tap)

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, MllmCaptioner)
        with text_only(network):
            return self.score(network), None


def _is_spared(name: str) -> bool:
    """Whether a parameter has no weight decay although it is a matrix: an embedding of tokens."""
    return name.endswith((".position", ".kinds"))


def _tap(network: MllmCaptioner, control: AttentionControl) -> Tap | None:
    """The tap on the controlled attention.

    None if there is no control, or if the connector returns its attention itself.

    Raises:
        UserError: If attention cannot be read.
    """
    family = network.base.family
    if not control.is_on or (family is families.LM and control.where == "vision"):
        return None
    if control.where == "llm":
        if network.shape.tokens is None:
            raise UserError(
                f"attention.where=llm: the image tokens of {family.name} are learned queries, "
                "which have no places",
                "Set attention.where=vision",
            )
        module, _ = families.module_at(network.model, family.language, control.layer)
        return Tap(module, "rows")
    if not family.vision:
        raise UserError(
            f"attention.where=vision: the vision network of family {family.name} is not known",
            "Set attention.where=llm",
        )
    module, number = families.module_at(network.model, family.vision, control.layer)
    whole = getattr(network.base.config.vision_config, "fullatt_block_indexes", None)
    if whole is not None and number not in whole:
        raise UserError(
            f"attention.layer={control.layer}: vision layer {number} sees windows alone",
            f"Set one of {', '.join(map(str, whole))}",
        )
    return Tap(module, family.reading)
