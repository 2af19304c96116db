"""The objective of SCORER: captions, contrast between pairs, CBR, and facts of a renderer.

A step has two halves through the same network: changed pairs, and pairs of distractors. The
contrast is within a half, and between the pairs of different scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from cc_prep.models.cpu import use_kernels
from cc_prep.settings import Section
from cc_train.captioner import Caption, CaptionModel, Inputs
from cc_train.decoding.search import sampled
from cc_train.distributed import ALONE, Ranks
from cc_train.layers.caption_loss import caption_loss
from cc_train.layers.token_matching import contrast, token_matching
from cc_train.systems.scorer.batches import Half
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.encoder import EncodedPairs
from cc_train.systems.scorer.reconstruction import Reconstruction, sentence_of
from cc_train.systems.scorer.supervision import Supervision
from cc_train.text import IGNORED
from cc_train.training import optim
from cc_train.training.caption_objective import CaptionObjective, right_words


class Losses(Section):
    """Weights of the losses beside the caption's; 0 leaves one out."""

    contrast: float = Field(0.1, ge=0)
    """Between the images of pairs."""
    cbr: float = Field(0.001, ge=0)
    """Between the after images and those reconstructed from the before image and the sentence."""


@dataclass(frozen=True)
class Ways:
    """Choices between the paper and its public code, which differ in these points.

    Attributes:
        per_head: Each attention head matches tokens by itself.
        trained_cbr: CBR's weights are trained.
        slots: A sentence is the mean over all positions of a caption, not over its words alone.
        sampled: Validation samples its captions instead of decoding greedily.
    """

    per_head: bool = True
    trained_cbr: bool = True
    slots: bool = False
    sampled: bool = False


class ScorerObjective(CaptionObjective):
    """`Objective` on batches of `ScorerBatches`: caption + contrast + CBR, the mean of both halves.

    A caption's loss is divided by the words of its half. reconstruction: CBR; None if its weight is
    0. halves: those of the data set. seed: of the captions that validation samples. supervision:
    the losses of a renderer's facts, over both halves together.
    """

    network: ScorerCaptioner
    over = "batch"

    def __init__(
        self,
        network: ScorerCaptioner,
        reconstruction: Reconstruction | None,
        *,
        score: Callable[[CaptionModel], dict[str, float]],
        weights: Losses,
        ways: Ways,
        weight_decay: float,
        device: str,
        halves: Sequence[Half],
        ranks: Ranks = ALONE,
        seed: int = 0,
        supervision: Supervision | None = None,
    ) -> None:
        super().__init__(network, score, 0.0, weight_decay, device)
        assert (reconstruction is not None) == (weights.cbr > 0)
        self.weights, self.ways, self.halves, self.ranks = weights, ways, tuple(halves), ranks
        self.seed = seed
        self.reconstruction = None
        if reconstruction is not None:
            reconstruction.to(device).requires_grad_(ways.trained_cbr)
            self.reconstruction = use_kernels(reconstruction)
            self.others["cbr"] = self.reconstruction
        self.supervision = None
        if supervision is not None:
            self.supervision = self.others["supervision"] = supervision.to(device)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        trained: list[nn.Module] = [self.network]
        if self.reconstruction is not None and self.ways.trained_cbr:
            trained.append(self.reconstruction)
        if self.supervision is not None:
            trained.append(self.supervision)
        return optim.param_groups(trained, self.weight_decay)

    def denominators(self, batch: Mapping[str, Any]) -> dict[str, Tensor]:
        counts: dict[str, Tensor] = {
            half: (batch[half]["labels"] != IGNORED).sum() for half in self.halves
        }
        if self.supervision is not None:
            known = [self.supervision.denominators(batch[half]) for half in self.halves]
            counts |= {name: torch.stack([one[name] for one in known]).sum() for name in known[0]}
        return counts

    def chunks(self, batch: Any) -> list[Any]:
        """The halves: each has its own backward pass, so that only one is in memory at a time."""
        chunks = [{"half": half, **batch[half]} for half in self.halves]
        # All ranks gather together, also those that have no pair for a half.
        return [one for one in chunks if len(one["ids"]) or self.ranks.world > 1]

    def losses(
        self, phase: str, batch: Mapping[str, Any], step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        network, words = self.network, denominators[batch["half"]]
        encoded: EncodedPairs = network.change_detector(*network.features(batch["before_after"]))
        if self.supervision is None:
            hidden, looked = network.speaker.hidden(batch["ids"], encoded.difference), None
        else:
            hidden, looked = network.speaker.looked(batch["ids"], encoded.difference)
        logits = network.speaker.logit(hidden)
        parts = {"caption": caption_loss(logits, batch["labels"], self.label_smoothing) / words}
        total = parts["caption"]
        scenes = batch["scene"]
        if self.weights.contrast or self.reconstruction is not None:
            scenes = self.ranks.gather(scenes)  # a scene has one id, also where two ranks have it
        if self.weights.contrast:
            by_after, by_before = self.matchings(encoded)
            parts["contrast"] = (contrast(by_after, scenes) + contrast(by_before, scenes)) / 2
            total = total + self.weights.contrast * parts["contrast"]
        if self.reconstruction is not None:
            matched = self.cbr_matching(encoded, hidden, batch["ids"])
            parts["cbr"] = (contrast(matched, scenes) + contrast(matched.T, scenes)) / 2
            total = total + self.weights.cbr * parts["cbr"]
        parts["word_accuracy"] = right_words(logits, batch["labels"]) / words
        # The mean is over the halves that have pairs on any rank. The trainer clamps an empty count
        # to 1, and every caption has at least 2 tokens: more than 1.5 means the half has pairs.
        counts = torch.stack([denominators[half] * self.ranks.world for half in self.halves])
        present = (counts > 1.5).sum().clamp(min=1)
        shares = {name: part / present for name, part in {"total": total, **parts}.items()}
        if self.supervision is not None:
            known, facts = self.supervision(encoded, looked, batch, denominators)
            shares = {**shares, **facts, "total": shares["total"] + known}
        return shares

    def matchings(self, encoded: EncodedPairs) -> tuple[Tensor, Tensor]:
        """Similarities among all ranks' pairs, [B, B] each: before by after, after by before."""
        queries = encoded.queries
        return (
            self._matched(queries.before, queries.after_keys, queries.scale),
            self._matched(queries.after, queries.before_keys, queries.scale),
        )

    def cbr_matching(self, encoded: EncodedPairs, hidden: Tensor, ids: Tensor) -> Tensor:
        """Similarities, [B, B], of all ranks' reconstructed after images to the real ones.

        Args:
            hidden: The decoder's states of the true captions, of ids [B, L].
        """
        assert self.reconstruction is not None
        is_word = ids != self.network.codec.marks.pad
        sentence = sentence_of(hidden, is_word, self.ways.slots)
        made_up = self.reconstruction(encoded.before, sentence)
        queries, keys = self.reconstruction.queries(made_up, encoded.after)
        return self._matched(queries, keys, self.reconstruction.scale)

    def _matched(self, queries: Tensor, keys: Tensor, scale: Tensor) -> Tensor:
        """Matches each rank's own queries with all keys; then gathers the rows of all ranks."""
        heads = self.network.change_detector.sizes.heads if self.ways.per_head else 1
        rows = token_matching(queries, self.ranks.gather(keys.float()), heads)
        return self.ranks.gather(scale * rows)

    def after_step(self, step: int) -> None:
        self.network.change_detector.clamp_scale()
        if self.reconstruction is not None and self.ways.trained_cbr:
            self.reconstruction.clamp_scale()

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        assert isinstance(network, ScorerCaptioner)
        if self.ways.sampled and not self.ranks.is_main_process:
            return {}, None
        return self.score(Sampling(network, self.seed) if self.ways.sampled else network), None


class Sampling:
    """A `CaptionModel` that samples captions by their probabilities, reproducibly by a seed."""

    def __init__(self, network: ScorerCaptioner, seed: int) -> None:
        self.network, self.inputs, self.device = network, network.inputs, network.device
        self.generator = torch.Generator().manual_seed(seed)

    inputs: Inputs
    device: torch.device

    @torch.inference_mode()
    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        """Captions of B pairs; see `CaptionModel.caption`."""
        assert beams == 1, "drawn captions have no beams"
        codec, memory = self.network.codec, self.network.memory(before_after)
        ids = sampled(self.network.next_word(), memory, self.generator, codec.marks)
        return [Caption(codec.decode(row)) for row in ids[:, 1:].tolist()]
