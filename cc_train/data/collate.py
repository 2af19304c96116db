"""Samples → the batches that captioners are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_train.text import TextCodec

Reads = Literal["pixels", "tokens", "features"]
NO_FEATURES = "Build the shards with features of both"
NO_STORED_FRAMES = "Build the shards with --set keyframes.images=all, or train on tokens"


@dataclass(frozen=True)
class CaptionBatches:
    """Before and after with one of the captions: {before_after, ids, labels}.

    before_after: see `before_after`. ids, labels: int64 [B, length], as `TextCodec.encode` has it.
    mask: also {mask: uint8 [B, H, W], 255 where something changed; has_mask: bool [B], whether the
    sample has one at all}.
    """

    reads: Reads
    text: TextCodec
    length: int
    mask: bool = False

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        encoded = [
            self.text.encode(draw_caption(sample, rng), self.length)
            for sample, rng in zip(samples, rngs, strict=True)
        ]
        ids, labels = (np.stack(part) for part in zip(*encoded, strict=True))
        pairs = np.stack([before_after(sample, self.reads) for sample in samples])
        return {
            "before_after": torch.from_numpy(pairs),
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            **(_masks(samples) if self.mask else {}),
        }


def before_after(sample: TrainingSample, reads: Reads) -> np.ndarray:
    """The two ends of a sequence, as a captioner reads them. Raises UserError.

    pixels: uint8 [2, H, W, 3]. tokens: codebook indices int64 [2, n]. features: float16
    [2, C, h, w].
    """
    last = len(sample.tokens) - 1
    if reads == "tokens":
        return sample.tokens[[0, last]].reshape(2, -1).astype(np.int64)
    if reads == "pixels":
        return images_of(sample, [0, last])
    if sample.features is None or not {0, last} <= set(sample.features.frames):
        raise UserError(f"{sample.key}: no features of before and after stored", NO_FEATURES)
    rows = [sample.features.frames.index(frame) for frame in (0, last)]
    return sample.features.values[rows]


def _masks(samples: Sequence[TrainingSample]) -> dict[str, torch.Tensor]:
    masks = [sample.mask() for sample in samples]
    empty = [
        np.zeros((sample.meta["height"], sample.meta["width"]), np.uint8) for sample in samples
    ]
    filled = [one if mask is None else mask for mask, one in zip(masks, empty, strict=True)]
    return {
        "mask": torch.from_numpy(np.stack(filled)),
        "has_mask": torch.tensor([mask is not None for mask in masks]),
    }


def images_of(sample: TrainingSample, frames: Sequence[int]) -> np.ndarray:
    """Images uint8 [T, H, W, 3] of some frames, in the size of the first. Raises UserError."""
    missing = [frame for frame in frames if frame not in sample.images]
    if missing:
        raise UserError(f"{sample.key}: no image of frame {missing[0]} stored", NO_STORED_FRAMES)
    images = [sample.image(frame) for frame in frames]
    height, width = images[0].shape[:2]
    return np.stack([cv2.resize(image, (width, height)) for image in images])


def draw_caption(sample: TrainingSample, rng: np.random.Generator, first: bool = False) -> str:
    """One of a sample's captions, or always the first; empty where there is none."""
    captions = sample.meta.get("captions") or [""]
    return str(captions[0 if first else int(rng.integers(len(captions)))])
