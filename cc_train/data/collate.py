"""Samples → the batches that captioners are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features, TrainingSample
from cc_prep.media.images import resize
from cc_prep.steps.imported_features import UNKNOWN
from cc_train.text import TextCodec

Reads = Literal["pixels", "tokens", "features"]
NO_FEATURES = "Build the shards with features (features.backbone): see docs/features.md"
NO_FEATURE_FRAMES = "Build the shards with features.backbone and --set features.frames=all"
NO_STORED_FRAMES = "Build the shards with --set keyframes.images=all, or train on tokens"


class FeatureSource(NamedTuple):
    """The backbone whose features are read: its name, since several share one network, and the
    SHA-256 of its weights.
    """

    name: str
    sha256: str

    @classmethod
    def of(cls, features: Features) -> FeatureSource:
        """The source of stored features."""
        return cls(features.backbone, features.sha256)

    def __str__(self) -> str:
        return f"{self.name} ({digest_in_words(self.sha256)})"


def digest_in_words(sha256: str | None) -> str:
    """The first digits of a network's SHA-256, or that it is not known."""
    return "SHA-256 not known" if sha256 in (None, UNKNOWN) else f"SHA-256 {sha256[:12]}…"


@dataclass(frozen=True)
class CaptionBatches:
    """Makes batches of before and after with one of the captions: {before_after, ids, labels}.

    before_after: [B, …], the stacked results of the function `before_after`. ids, labels: int64 [B,
    length], as `TextCodec.encode` returns them. With `mask`, a batch also has `mask`, class ids
    uint8 [B, H, W], 0 unchanged, and `has_mask`, bool [B], False for a sample without a mask, whose
    `mask` is then 0.

    Attributes:
        backbone: The backbone whose features are read.

    Raises:
        UserError: If the shards do not hold what is read, or their images differ in size.
    """

    reads: Reads
    codec: TextCodec
    length: int
    mask: bool = False
    backbone: FeatureSource | None = None

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        for sample in samples:
            if self.reads == "features":
                require_backbone(sample.key, sample.features, self.backbone)
        encoded = [
            self.codec.encode(draw_caption(sample, rng), self.length)
            for sample, rng in zip(samples, rngs, strict=True)
        ]
        ids, labels = (np.stack(part) for part in zip(*encoded, strict=True))
        pairs = stack(samples, [before_after(sample, self.reads) for sample in samples])
        return {
            "before_after": torch.from_numpy(pairs),
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            **(_masks(samples) if self.mask else {}),
        }


def before_after(
    sample: TrainingSample, reads: Reads, size: tuple[int, int] | None = None
) -> np.ndarray:
    """The two ends of a sequence, as a captioner reads them.

    pixels: uint8 [2, H, W, 3] RGB. tokens: codebook indices int64 [2, n]. features: [2, C, h, w],
    float16 or float32, as they are stored.

    Args:
        size: Height and width to which images are resized; None leaves them as they are.

    Raises:
        UserError: If the shard does not hold what is read.
    """
    last = len(sample.tokens) - 1
    if reads == "tokens":
        return sample.tokens[[0, last]].reshape(2, -1).astype(np.int64)
    if reads == "pixels":
        return images_of(sample, [0, last], size)
    if sample.features is None or not {0, last} <= set(sample.features.frames):
        raise UserError(f"{sample.key}: no features of before and after stored", NO_FEATURES)
    return features_of(sample, [0, last])


def features_of(sample: TrainingSample, frames: Sequence[int]) -> np.ndarray:
    """Features [T, C, h, w] of the frames of these numbers, float16 or float32 as they are stored.

    Raises:
        UserError: If the shard does not hold the features of one of the frames.
    """
    stored = () if sample.features is None else sample.features.frames
    missing = [frame for frame in frames if frame not in stored]
    if missing or sample.features is None:
        raise UserError(
            f"{sample.key}: no features of frame {missing[0]} stored", NO_FEATURE_FRAMES
        )
    return sample.features.values[[stored.index(frame) for frame in frames]]


def require_backbone(key: str, features: Features | None, backbone: FeatureSource | None) -> None:
    """Raises UserError if a sample's features are of another backbone; None accepts any."""
    stored = None if features is None else FeatureSource.of(features)
    if stored is not None and backbone not in (None, stored):
        raise UserError(
            f"{key} holds features of {stored}, not of {backbone}",
            "Build all shards with one backbone",
        )


def stack(samples: Sequence[TrainingSample], arrays: Sequence[np.ndarray]) -> np.ndarray:
    """One array [B, …] of an array per sample.

    Raises:
        UserError: If their shapes differ.
    """
    for sample, array in zip(samples, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise UserError(
                f"{sample.key} has the shape {array.shape}, {samples[0].key} has {arrays[0].shape}",
                "Build the shards with one image_size",
            )
    return np.stack(arrays)


def _masks(samples: Sequence[TrainingSample]) -> dict[str, torch.Tensor]:
    masks = [sample.mask() for sample in samples]
    empty = [
        np.zeros((sample.meta["height"], sample.meta["width"]), np.uint8) for sample in samples
    ]
    filled = [one if mask is None else mask for mask, one in zip(masks, empty, strict=True)]
    return {
        "mask": torch.from_numpy(stack(samples, filled)),
        "has_mask": torch.tensor([mask is not None for mask in masks]),
    }


def images_of(
    sample: TrainingSample, frames: Sequence[int], size: tuple[int, int] | None = None
) -> np.ndarray:
    """Images uint8 [T, H, W, 3] RGB of the frames of these numbers.

    Args:
        size: Height and width in px to which they are resized, see `resize`; None takes the size of
            the first image.

    Raises:
        UserError: If the shard holds no image of a frame.
    """
    missing = [frame for frame in frames if frame not in sample.images]
    if missing:
        raise UserError(f"{sample.key}: no image of frame {missing[0]} stored", NO_STORED_FRAMES)
    images = [sample.image(frame) for frame in frames]
    height, width = images[0].shape[:2] if size is None else size
    return np.stack([resize(image, (height, width)) for image in images])


def draw_caption(sample: TrainingSample, rng: np.random.Generator, first: bool = False) -> str:
    """A random one of a sample's captions, or the first; empty if it has none."""
    captions = sample.meta.get("captions") or [""]
    return str(captions[0 if first else int(rng.integers(len(captions)))])
