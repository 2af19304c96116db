"""The objective of the chain: captions, masks, their agreement, and facts of a renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cc_train.captioner import CaptionModel
from cc_train.decoding.search import greedy
from cc_train.distributed import ALONE, Ranks
from cc_train.layers.caption_loss import caption_loss
from cc_train.systems.chain import consistency, masks, matching
from cc_train.systems.chain.captioner import ChainCaptioner, Look
from cc_train.systems.chain.consistency import Consistency
from cc_train.systems.chain.matching import Components
from cc_train.systems.chain.regions import Regions
from cc_train.text import IGNORED
from cc_train.training import fact_losses, optim
from cc_train.training.caption_objective import CaptionObjective, right_words
from cc_train.training.fact_losses import FactLosses

NONE_WEIGHT = 0.1  # of a region that should be none, in the loss of classes
EARLY = 0.5  # the weight of every round but the last


class Losses(FactLosses):
    """Weights of the losses; 0 leaves one out, and those of a round are means over the rounds."""

    caption: float = Field(1.0, ge=0)
    """Cross-entropy of the next word."""
    mask: float = Field(5.0, ge=0)
    """Cross-entropy of the masks of all regions together."""
    dice: float = Field(1.0, ge=0)
    """1 − Dice of the same masks."""
    region: float = Field(0.5, ge=0)
    """Between each true region and the region matched with it."""
    region_class: float = Field(0.5, ge=0)
    """Cross-entropy of all regions' classes."""
    pointing: float = Field(0.2, ge=0)
    """Of where the decoder looks at the words of a region; see docs/chain.md."""
    contrast: float = Field(0.1, ge=0)
    """Between the captions and the regions of a batch; see docs/chain.md."""
    agreement: float = Field(0.1, ge=0)
    """Between what caption and regions say; see docs/chain.md."""


PARTS = ("caption", "mask", "dice", "region", "region_class", "pointing", "contrast", "agreement")


@dataclass(frozen=True)
class Turn:
    """A round of P pairs: its regions, and the decoder's states and attention at each word."""

    regions: Regions
    states: Tensor
    looked: Tensor


class ChainObjective(CaptionObjective):
    """`Objective` on `ChainBatches`. The loss of a caption is divided by its words.

    Args:
        sampled: The share of steps in which rounds get the captioner's own words instead of the
            true ones.
        trunk_rate: Factor on the learning rate of the parts that a pair captioner has as well; 0
            freezes them, saves their backward pass, and leaves out the losses of a renderer's
            facts.
    """

    network: ChainCaptioner

    def __init__(
        self,
        network: ChainCaptioner,
        score: Callable[[CaptionModel], dict[str, float]],
        *,
        weights: Losses,
        sampled: float,
        label_smoothing: float,
        weight_decay: float,
        device: str,
        ranks: Ranks = ALONE,
        trunk_rate: float = 1.0,
    ) -> None:
        super().__init__(network, score, label_smoothing, weight_decay, device)
        self.weights, self.sampled, self.ranks = weights, sampled, ranks
        self.trunk_rate = trunk_rate
        # A contrast is over a whole batch; everything else is a sum over pairs.
        self.over = "batch" if weights.contrast else "sum"
        width = network.encoder.sizes.width
        self.consistency = Consistency(width, network.decoder.sizes.width).to(device)
        self.others["consistency"] = self.consistency
        self.trunk = nn.ModuleList((network.encoder, network.bridge, network.decoder))
        for parameter in (*self.trunk.parameters(), network.kinds):
            parameter.requires_grad_(trunk_rate > 0)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        network = self.network
        own = (network.regions, network.of_region, network.gate, self.consistency)
        groups = optim.param_groups(own, self.weight_decay)
        groups.append({"params": [network.region_kinds], "weight_decay": 0.0})
        if self.trunk_rate:
            trunk = optim.param_groups([self.trunk], self.weight_decay)
            trunk.append({"params": [network.kinds], "weight_decay": 0.0})
            groups += [{**group, "scale": self.trunk_rate} for group in trunk]
        return groups

    def denominators(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        words = super().denominators(batch)["words"]
        known, device = batch["has_mask"], words.device
        classes, queries = self._sizes
        true = torch.tensor(len(batch["region_pair"]), device=device)
        return {
            "words": words,
            "pairs": torch.tensor(len(batch["first"]), device=device),
            "masks": known.sum(),
            "classes": masks.present(batch["mask"], known, classes).sum(),
            "regions": true,
            "queries": true + NONE_WEIGHT * (queries * known[:, 0].sum() - true),
            "pointed": self._pointed(batch).sum(),
            **fact_losses.denominators(batch),
        }

    @property
    def _sizes(self) -> tuple[int, int]:
        regions = self.network.regions
        return regions.class_count, regions.sizes.queries

    def _pointed(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Whether a pair's mask shows where its words should look, bool [P]."""
        return batch["has_mask"][:, 0] & (batch["mask"][:, 0] > 0).flatten(1).any(1)

    def losses(
        self, phase: str, batch: Mapping[str, Tensor], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        network, weights = self.network, self.weights
        features, first, second = batch["features"], batch["first"], batch["second"]
        longest = int((batch["labels"] != IGNORED).sum(1).max())
        cut = {name: batch[name][:, :longest] for name in ("ids", "labels")}
        batch = {**batch, **cut, "sentences": batch["ids"]}
        images = network.encoder.images(features)
        changes = network.encoder(images[first], images[second])
        facts: dict[str, Tensor] = {}
        if self.trunk_rate:  # otherwise the encoder, which reads the facts, is frozen
            facts = fact_losses.losses(network.encoder, changes, images, batch, denominators)
        look = network.look(changes, images, features, first, second)
        turns = self._turns(look, batch)
        parts: dict[str, Tensor] = {}
        shares = [EARLY] * (len(turns) - 1) + [1.0]
        for turn, share in zip(turns, shares, strict=True):
            for name, value in self._of_turn(look, turn, batch, denominators).items():
                parts[name] = parts.get(name, 0.0) + share / sum(shares) * value
        total = weights.total(facts) if facts else torch.zeros((), device=features.device)
        for name in PARTS:
            total = total + getattr(weights, name) * parts[name]
        logits = network.decoder.out(turns[-1].states)
        right = right_words(logits, batch["labels"]) / denominators["words"]
        return {"total": total, **parts, **facts, "word_accuracy": right}

    def _turns(self, look: Look, batch: Mapping[str, Tensor]) -> list[Turn]:
        """All rounds. They get the true words, or in some steps those of the captioner itself."""
        network, ids = self.network, batch["ids"]
        own_words = bool(torch.rand(()) < self.sampled) and network.feedback == "text"
        regions = network.regions.first(look.inputs)
        turns: list[Turn] = []
        for number in range(network.rounds + 1):
            memory = network.attended(look, regions)
            turns.append(Turn(regions, *network.decoder.looked(ids, memory)))
            if number == network.rounds:
                break
            states, heard = turns[-1].states, ids
            if own_words:
                decoder = network.next_word()
                heard = greedy(decoder, memory.detach(), network.codec.marks)[:, :-1].clone()
                states = network.decoder.hidden(heard, memory).detach()
            regions = network.refine(look, regions, states, heard)
        return turns

    def _of_turn(
        self,
        look: Look,
        turn: Turn,
        batch: Mapping[str, Tensor],
        counts: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """The losses of a round by the names of PARTS, each divided by its denominator."""
        regions, states, labels = turn.regions, turn.states, batch["labels"]
        logits, known = self.network.decoder.out(states), batch["has_mask"]
        together = regions.evidence
        mask_logits = together.logits((batch["mask"].shape[2], batch["mask"].shape[3]))
        true = Components(batch["region_pair"], batch["region_class"], batch["region_mask"])
        of_regions, of_classes = _matched(regions, true, known[:, 0])
        parts = {
            "caption": caption_loss(logits, labels, self.label_smoothing) / counts["words"],
            "mask": masks.cross_entropy(mask_logits, batch["mask"], known) / counts["masks"],
            "dice": masks.dice(mask_logits, batch["mask"], known) / counts["classes"],
            "region": of_regions / counts["regions"],
            "region_class": of_classes / counts["queries"],
        }
        return {**parts, **self._consistent(look, turn, batch, counts)}

    def _consistent(
        self,
        look: Look,
        turn: Turn,
        batch: Mapping[str, Tensor],
        counts: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        weights, module = self.weights, self.consistency
        is_word = self.network.is_word(batch["ids"])
        zero = turn.states.sum() * 0
        parts = dict.fromkeys(("pointing", "contrast", "agreement"), zero)
        if weights.pointing:
            rows = self._pointed(batch)
            grid = self.network.backbone.spec.grid[1:]
            places = grid[0] * grid[1]
            first = self.network.encoder.summaries
            looked = turn.looked[rows, :, first : first + places]
            labels = batch["labels"][rows]
            says = (labels != IGNORED) & (labels != self.network.codec.marks.end)
            pointing = consistency.pointing(looked, batch["mask"][rows, 0], says, grid)
            parts["pointing"] = pointing / counts["pointed"]
        if weights.contrast:
            vectors = module.embedded(look.inputs, turn.regions.evidence, turn.states, is_word)
            parts["contrast"] = consistency.contrast(
                *vectors, batch["sentences"], batch["changed"], self.ranks
            )
        if weights.agreement:
            sentence = module.changed(turn.states[:, 0])[:, 0]  # before any word is heard
            truth = F.binary_cross_entropy_with_logits(
                sentence.float(), batch["changed"].float(), reduction="sum"
            )
            both = consistency.agreement(sentence, turn.regions.unchanged)
            parts["agreement"] = (truth + both) / counts["pairs"]
        return parts


def _matched(regions: Regions, true: Components, known: Tensor) -> tuple[Tensor, Tensor]:
    """Summed losses of the masks of true regions, and of the classes of all regions.

    Args:
        known: Whether a pair's mask is known, bool [P]; the regions of other pairs do not count. A
            region that matches no true region weighs NONE_WEIGHT.
    """
    rows, queries = matching.assign(regions, true)
    pairs = true.pair[rows]
    classes = torch.zeros(regions.classes.shape[:2], dtype=torch.long, device=pairs.device)
    classes[pairs, queries] = true.classes[rows]
    weight = torch.full((regions.classes.shape[2],), 1.0, device=pairs.device)
    weight[0] = NONE_WEIGHT
    logits = regions.classes[known].flatten(0, 1).float()
    of_classes = F.cross_entropy(logits, classes[known].flatten(), weight, reduction="sum")
    x, y = matching.region_masks(regions)[pairs, queries].flatten(1), true.masks[rows].flatten(1)
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none").mean(1)
    chance = x.sigmoid()
    overlap = (2 * (chance * y).sum(1) + 1) / (chance.sum(1) + y.sum(1) + 1)
    return (5 * entropy + 1 - overlap).sum(), of_classes
