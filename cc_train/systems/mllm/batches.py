"""Samples → batches of a multi-modal language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from cc_prep.formats.training_shards import TrainingSample
from cc_prep.settings import Section
from cc_train.data import collate, found_entities
from cc_train.systems.mllm import prompts
from cc_train.systems.mllm.attention_loss import Form, soft_mask
from cc_train.systems.mllm.prompts import PromptTokenizer


class AttentionControl(Section):
    """Settings of the loss that draws attention to the changed area."""

    where: Literal["vision", "llm", "none"] = "vision"
    """In the vision network, in the language model (from the last token of the prompt to the image
    tokens), or nowhere."""
    layer: int = -1
    """Number of the layer; −1 is the last one."""
    form: Form = "attention_to_mask"
    """What is compared (docs/mllm.md)."""
    weight: float = Field(0.1, ge=0)
    """Weight of the loss."""
    masks: Literal["found", "truth"] = "found"
    """`found` by `cc-prep changes`, or the true ones of the shards."""
    largest_share: float = Field(0.6, gt=0, le=1)
    """Pairs whose mask covers more of the image have no attention loss, since such a mask says
    little."""

    @property
    def is_on(self) -> bool:
        """Whether there is such a loss."""
        return self.where != "none" and self.weight > 0


class Entities(Section):
    """Settings of the entities (names of things) in the prompt."""

    source: Literal["retrieved", "none"] = "retrieved"
    """The entities that `cc-prep entities` retrieved, or none."""
    k: int = Field(1, ge=1)
    """Their largest number for a pair."""
    drop: float = Field(0.15, ge=0, le=1)
    """The share of training prompts without any, so that a model works without them and does not
    trust them blindly."""


@dataclass(frozen=True)
class MllmBatches:
    """Makes batches: {before_after, ids, attention, labels, last} and, by settings, more keys.

    before_after: images uint8 [B, 2, *size, 3], or features [B, 2, C, h, w] of `backbone`. ids …
    last: see `prompts.training_batch`. qformer_…: the prompts for a bridge. With `grid` also mask,
    soft masks float32 [B, rows · columns], and has_mask, bool [B].

    Attributes:
        images: Number of pictures of a prompt.
        pasted: Whether that is one picture of both images, so that both halves have the mask.

    Raises:
        UserError: For data that the shards do not hold.
    """

    prompt_tokenizer: PromptTokenizer
    size: tuple[int, int]
    control: AttentionControl
    entities: Entities
    grid: tuple[int, int] | None = None
    images: int = 2
    backbone: collate.FeatureSource | None = None
    pasted: bool = False

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        reads: collate.Reads = "pixels" if self.backbone is None else "features"
        for sample in samples:
            if self.backbone is not None:
                collate.require_backbone(sample.key, sample.features, self.backbone)
        drawn = zip(samples, rngs, strict=True)
        # The caption is drawn first: whether entities are dropped does not change which one.
        captions, names = zip(
            *((collate.draw_caption(s, rng), self._names(s, rng)) for s, rng in drawn), strict=True
        )
        tokenizer = self.prompt_tokenizer
        questions = [tokenizer.question(one) for one in names]
        answers = [tokenizer.caption(one) for one in captions]
        pairs = [collate.before_after(sample, reads, self.size) for sample in samples]
        return {
            "before_after": torch.from_numpy(collate.stack(samples, pairs)),
            **prompts.training_batch(questions, answers, tokenizer.pad),
            **tokenizer.bridge(names, self.images),
            **self._masks(samples),
        }

    def _names(self, sample: TrainingSample, rng: np.random.Generator) -> list[str]:
        if self.entities.source == "none":
            return []
        dropped = rng.random() < self.entities.drop
        return [] if dropped else found_entities.entities(sample, self.entities.k)

    def _masks(self, samples: Sequence[TrainingSample]) -> dict[str, torch.Tensor]:
        """The masks over an image's places. Images are resized without cropping, so the whole mask
        covers the whole image."""
        if self.grid is None:
            return {}
        rows, columns = self.grid
        soft = np.zeros((len(samples), rows * columns), np.float32)
        has_mask = np.zeros(len(samples), bool)
        for number, sample in enumerate(samples):
            mask = mask_of(sample, self.control)
            if mask is not None and 0 < mask.mean() <= self.control.largest_share:
                over = np.hstack((mask, mask)) if self.pasted else mask
                soft[number] = soft_mask(over, self.grid).reshape(-1)
                has_mask[number] = True
        return {"mask": torch.from_numpy(soft), "has_mask": torch.from_numpy(has_mask)}


def mask_of(sample: TrainingSample, control: AttentionControl) -> np.ndarray | None:
    """uint8 [H, W], 1 where something changed, by the masks that are set; None where it has none.

    Raises DamagedShard.
    """
    if control.masks == "found":
        return sample.change()
    true = sample.mask()
    return None if true is None else (true > 0).astype(np.uint8)
