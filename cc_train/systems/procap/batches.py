"""Samples of training shards → the batches of stage 1, with their random choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import cv2
import numpy as np
import torch
from pydantic import Field

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.manifest import Strategy
from cc_prep.models import clip
from cc_prep.records import NO_CHANGE
from cc_prep.settings import Section
from cc_prep.steps.score import UNSCORED, choose_keyframes, penalties
from cc_train.data.collate import (
    NO_FEATURE_FRAMES,
    NO_STORED_FRAMES,
    FeatureSource,
    Reads,
    draw_caption,
    features_of,
    images_of,
    require_backbone,
    stack,
)
from cc_train.systems.procap import damage, masking, pasting
from cc_train.systems.procap.masking import Masks

DRAWING: tuple[Strategy, ...] = ("confidence", "random", "visual")
Text = Literal["captions", "none"]


class Keyframes(Section):
    """The rule that selects frames between before and after; some strategies draw them each time.

    Shards that hold only the images of their fixed keyframes do for a rule that does not draw; a
    rule that draws needs the images of all frames. This holds for features as well.
    """

    strategy: Strategy = "confidence"
    """How frames between before and after are chosen (docs/scoring.md)."""
    k: int = Field(2, ge=0)
    """How many there are."""
    threshold: float | None = Field(None, ge=0)
    """Frames of a larger penalty are drawn only where there are not enough others."""


@dataclass(frozen=True)
class ProcedureBatches:
    """Stage 1: `ProcedureBatches(…)(samples, rngs)` is a batch for Stage1Objective.

    Attributes:
        text_length: Number of byte pairs of a caption.
        first_caption: Always use the first caption, as the reference does for small data sets.
        crop: See `cropped`.
        backbone: The backbone of the features.
        text: `none` shows no caption.
        pasted: A batch also has a pair with pasted things of each sample.
    """

    kind: Reads
    keyframes: Keyframes
    masks: Masks
    text_length: int
    first_caption: bool = False
    crop: float | None = None
    backbone: FeatureSource | None = None
    text: Text = "captions"
    pasted: bool = False

    def __call__(
        self,
        samples: Sequence[TrainingSample],
        rngs: Sequence[np.random.Generator],
        others: tuple[Sequence[TrainingSample], Sequence[np.random.Generator]] = ((), ()),
        negative_index: np.ndarray | None = None,
    ) -> dict[str, Any]:
        """others, negative_index: whose caption and frames are each sample's wrong ones, see
        `Stream`; without them its neighbour in the batch.
        """
        count = len(samples)
        if negative_index is None:
            negative_index = negative_indices(count)
        shown = [self._shown(*drawn) for drawn in zip(samples, rngs, strict=True)]
        visible, masks = [], []
        for sample, one, rng in zip(samples, shown, rngs, strict=True):
            mask, is_visible = masking.draw(
                (len(one.chosen), *sample.tokens.shape[1:]), self.masks, rng
            )
            masks.append(masking.NAMES.index(mask))
            visible.append(is_visible.reshape(-1))
        shown += [self._shown(*drawn) for drawn in zip(*others, strict=True)]
        every = [*samples, *others[0]]
        frames = stack(every, [one.frames for one in shown])
        damages = [
            damage.damage(own, frames[other], rng)
            for own, other, rng in zip(frames[:count], negative_index, rngs, strict=True)
        ]
        texts = [one.text for one in shown]
        valid = negative_is_valid(texts, [sample.meta for sample in every], negative_index)
        tokens = np.stack([one.tokens for one in shown[:count]])
        return {
            "text": torch.from_numpy(np.stack([text_ids(t, self.text_length) for t in texts])),
            "frames": torch.from_numpy(frames[:count]),
            "altered": torch.from_numpy(np.stack([one.altered[None] for one in damages])),
            "damaged_order": torch.from_numpy(np.stack([one.order for one in damages])),
            # The stored ones are of whole frames.
            **({"tokens": torch.from_numpy(tokens).flatten(1)} if self.crop is None else {}),
            "visible": torch.from_numpy(np.stack(visible)),
            "negative_index": torch.from_numpy(negative_index),
            "negative_is_valid": torch.tensor(valid),
            "mask": torch.tensor(masks),
            "changed": torch.tensor([s.meta.get("kind") != NO_CHANGE for s in samples]),
            **(self._pasted(every, rngs, negative_index) if self.pasted else {}),
        }

    def _pasted(
        self,
        samples: Sequence[TrainingSample],
        rngs: Sequence[np.random.Generator],
        sources: np.ndarray,
    ) -> dict[str, torch.Tensor]:
        """A pair with pasted things of each sample that has a generator.

        Args:
            sources: The number of the sample that the things of each are cut out of.
        """
        ends, kinds = [], []
        for sample, source, rng in zip(samples, sources.tolist(), rngs, strict=False):
            size = int(sample.meta["height"]), int(sample.meta["width"])
            image, other = (_an_end(one, size, rng) for one in (sample, samples[source]))
            grid = sample.tokens.shape[1], sample.tokens.shape[2]
            pair = pasting.paste(image, other, grid, rng)
            ends.append(pair.ends)
            kinds.append(pair.kinds.reshape(-1))
        return {
            "pasted": torch.from_numpy(stack(samples[: len(ends)], ends)),
            "pasted_kinds": torch.from_numpy(np.stack(kinds)),
        }

    def _shown(self, sample: TrainingSample, rng: np.random.Generator) -> Shown:
        """Draws the frames and the caption of a sample, before its mask."""
        chosen = self._keyframes(sample, rng)
        text = "" if self.text == "none" else draw_caption(sample, rng, self.first_caption)
        tokens = sample.tokens[chosen].reshape(len(chosen), -1).astype(np.int64)
        seen = self._seen(sample, chosen, tokens)
        frames = seen if self.crop is None else cropped(seen, self.crop, rng)
        return Shown(chosen, text, tokens, frames)

    def _seen(self, sample: TrainingSample, chosen: list[int], tokens: np.ndarray) -> np.ndarray:
        """The encoder's input for the frames of these numbers."""
        if self.kind == "pixels":
            return images_of(sample, chosen)
        if self.kind == "features":
            require_backbone(sample.key, sample.features, self.backbone)
            return features_of(sample, chosen)
        return tokens

    def _check_drawn(self, sample: TrainingSample) -> None:
        """Raises UserError if a rule that draws would not find all frames."""
        if self.kind == "tokens" or not self.keyframes.k or self.keyframes.strategy not in DRAWING:
            return
        what, stored, remedy = "images", len(sample.images), NO_STORED_FRAMES
        if self.kind == "features":
            features = sample.features
            what, stored = "features", 0 if features is None else len(features.frames)
            remedy = NO_FEATURE_FRAMES
        if stored < len(sample.tokens):
            raise UserError(
                f"keyframes.strategy {self.keyframes.strategy} draws among {len(sample.tokens)} "
                f"frames, and {sample.key} holds the {what} of {stored}",
                remedy,
            )

    def _keyframes(self, sample: TrainingSample, rng: np.random.Generator) -> list[int]:
        self._check_drawn(sample)
        rule = self.keyframes
        penalty = penalties(*sample.scores)
        if rule.k > len(penalty) - 2:
            raise UserError(
                f"keyframes.k is {rule.k}, {sample.key} has {len(penalty) - 2} frames in between",
                "Set keyframes.k lower, or interpolate deeper",
            )
        if rule.k and rule.strategy not in UNSCORED and not sample.scores.shape[1]:
            raise UserError(
                f"keyframes.strategy {rule.strategy} needs scores, and {sample.key} has none",
                "Build the shards with scores, or set keyframes.strategy=uniform",
            )
        if rule.k and rule.strategy not in UNSCORED:
            _check_scores(sample, rule.strategy)
        return choose_keyframes(penalty, rule.k, rule.strategy, rng, rule.threshold)


def _check_scores(sample: TrainingSample, rule: Strategy) -> None:
    """Raises UserError for scores of captions where the rule is of images alone, or the reverse.

    Of a sample without captions there are no others than those of images alone.
    """
    scored_by = sample.meta.get("scored_by")
    if rule == "visual" and scored_by == "captions":
        raise UserError(
            f"keyframes.strategy visual needs scores of images alone, and {sample.key} has those "
            "of its captions",
            "Build the shards with keyframes.strategy=visual",
        )
    if rule != "visual" and scored_by == "likeness" and sample.meta.get("captions"):
        raise UserError(
            f"keyframes.strategy {rule} needs scores of the captions, and {sample.key} has those "
            "of images alone",
            f"Set keyframes.strategy=visual, or build the shards with keyframes.strategy={rule}",
        )


def _an_end(sample: TrainingSample, size: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """The image before or after, uint8 [H, W, 3]. Raises UserError if it is not stored."""
    frame = (0, len(sample.tokens) - 1)[int(rng.integers(2))]
    if frame not in sample.images:
        raise UserError(
            f"losses.local: things are pasted into images, and {sample.key} holds none of its ends",
            "Build the shards with --set keyframes.images=keyframes, or set losses.local=0",
        )
    image: np.ndarray = images_of(sample, [frame], size)[0]
    return image


@dataclass(frozen=True)
class Shown:
    """The shown part of a sample: the numbers of its frames, the caption, tokens int64 [T, n], and
    the encoder's input."""

    chosen: list[int]
    text: str
    tokens: np.ndarray
    frames: np.ndarray


def cropped(frames: np.ndarray, min_share: float, rng: np.random.Generator) -> np.ndarray:
    """A random crop, the same for all frames uint8 [T, H, W, 3], enlarged to their size.

    The crop has their aspect ratio, and from `min_share` to all of their area. Source: ProCap's
    loader.
    """
    height, width = frames.shape[1:3]
    share = float(rng.uniform(min_share, 1)) ** 0.5
    h, w = max(1, round(share * height)), max(1, round(share * width))
    y, x = (int(rng.integers(room + 1)) for room in (height - h, width - w))
    parts = frames[:, y : y + h, x : x + w]
    return np.stack([cv2.resize(part, (width, height)) for part in parts])


def text_ids(caption: str, length: int) -> np.ndarray:
    """Byte-pair ids int64 [length] without begin and end marks, cut and padded with 0."""
    ids = clip.token_ids(caption)[1:-1][:length]
    return np.array(ids + [0] * (length - len(ids)), np.int64)


def negative_indices(count: int) -> np.ndarray:
    """For each sample, the number of the one with its wrong caption and frames, int64 [count].

    It is the neighbour. This is for single batches; those of a `Stream` have partners from its
    whole order.
    """
    neighbours = np.arange(count) ^ 1
    return np.where(neighbours < count, neighbours, 0)


def other_scenes(scenes: Sequence[str]) -> np.ndarray:
    """For each sample of a batch, the number of a sample of another scene, int64 [count].

    This is for batches in the order of the shards, where the neighbour is often the other pair of
    the same scene, with the same image before. The search starts half a batch away; if all samples
    are of one scene, the neighbour is taken.
    """
    count = len(scenes)
    chosen = negative_indices(count)
    for number, scene in enumerate(scenes):
        for step in range(count):
            other = (number + count // 2 + step) % count
            if scenes[other] != scene:
                chosen[number] = other
                break
    return chosen


def negative_is_valid(
    texts: Sequence[str], metas: Sequence[Mapping[str, Any]], negative_index: np.ndarray
) -> list[bool]:
    """Whether the negative's caption is wrong for each sample: the captions differ, and at least
    one of the two pairs changed."""
    unchanged = [meta.get("kind") == NO_CHANGE for meta in metas]
    return [
        texts[i] != texts[j] and not (unchanged[i] and unchanged[j])
        for i, j in enumerate(negative_index.tolist())
    ]
