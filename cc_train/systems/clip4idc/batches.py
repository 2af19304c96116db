"""Pairs of sequence shards as input for CLIP4IDC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cc_prep.models import clip
from cc_prep.models.clip4idc import Config
from cc_prep.records import NO_CHANGE
from cc_prep.steps.score import normalize
from cc_train.data import order
from cc_train.data.sequence_index import Sample


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs that changed, at most `most`, each with its first caption, in batches."""

    samples: Sequence[Sample]
    most: int
    config: Config

    def __iter__(self) -> Iterator[dict[str, Any]]:
        changed = [s for s in self.samples if s.meta.get("kind") != NO_CHANGE] or self.samples
        chosen = order.sample(changed, [sample.key for sample in changed], self.most)
        for start in range(0, len(chosen), 32):
            part = chosen[start : start + 32]
            captions = [str(sample.meta["captions"][0]) for sample in part]
            yield collate([before_after(sample) for sample in part], captions, self.config)


def before_after(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Before and after, uint8 [H, W, 3]."""
    names = sample.frames
    return sample.image(names[0]), sample.image(names[-1])


def collate(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], captions: list[str], config: Config
) -> dict[str, Any]:
    """Images and captions as the network takes them, and the captions themselves."""
    before, after = zip(*pairs, strict=True)
    return {
        "before": normalize(before, config.resolution),
        "after": normalize(after, config.resolution),
        "tokens": torch.tensor(clip.tokenize(captions, config.caption_tokens)),
        "captions": captions,
    }
