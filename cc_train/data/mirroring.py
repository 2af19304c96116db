"""Scenes seen mirrored: left and right exchanged in features, words, places and masks alike.

The features of a mirrored image are not the mirrored features of the image, so the preparation
computes them from the mirrored image (`features.mirrored`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.media.images import encode_image
from cc_train.data.shard_index import scene_of

SIDES = {"left": "right", "right": "left"}
# In "the man has left", `left` is a verb.
SIDE = re.compile(r"(?<!\bhas )(?<!\bhave )(?<!\bhad )\b(left|right)(?=most\b|\b)", re.IGNORECASE)
MASKS = ("mask_png", "mask_before_png", "mask_after_png", "change_png")
NO_MIRRORED = "Build the shards with --set features.mirrored=true, or set mirror=0"

Make = Callable[[Sequence[TrainingSample], Sequence[np.random.Generator]], dict[str, Any]]


@dataclass(frozen=True)
class MirroredBatches:
    """Batches in which a share of the scenes is mirrored, each with all its samples.

    Attributes:
        make: Builds a batch that reads features, and neither images nor tokens.
        share: 0 to 1. With 0, no random number is drawn, so the batches are exactly those of
            `make`.
        masks: Whether `make` reads masks; without, mirrored samples have none.
    """

    make: Make
    share: float
    masks: bool = True

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        """A batch of the samples.

        Raises:
            UserError: Where one has no mirrored features.
        """
        if not self.share:
            return self.make(samples, rngs)
        seen: list[TrainingSample] = []
        pairs = zip(samples, rngs, strict=True)
        for _, group in groupby(pairs, key=lambda pair: scene_of(pair[0].key)):
            together = list(group)
            turned = together[0][1].random() < self.share
            seen += [mirrored(sample, self.masks) if turned else sample for sample, _ in together]
        return self.make(seen, rngs)


def mirrored(sample: TrainingSample, masks: bool = True) -> TrainingSample:
    """The sample as a mirror shows it, without its images and found regions.

    Its tokens stay as they are.

    Args:
        masks: Whether it keeps its masks, which takes decoding them.

    Raises:
        UserError: Where its mirrored features are not stored.
        DamagedShard: For a damaged mask.
    """
    features = sample.features
    if features is None or features.mirrored is None:
        raise UserError(f"{sample.key}: no features of the mirrored images stored", NO_MIRRORED)
    meta = dict(sample.meta)
    meta["captions"] = [exchange_sides(str(one)) for one in meta.get("captions") or []]
    if meta.get("entities"):
        meta["entities"] = [[exchange_sides(phrase), score] for phrase, score in meta["entities"]]
    if isinstance(meta.get("facts"), dict):
        meta["facts"] = _mirrored_facts(meta["facts"])
    meta.pop("regions", None)
    swapped = replace(features, values=features.mirrored, mirrored=features.values)
    turned = _mirrored_masks(sample) if masks else dict.fromkeys(MASKS)
    return replace(sample, meta=meta, images={}, features=swapped, **turned)


def exchange_sides(caption: str) -> str:
    """The caption with left and right exchanged, also in leftmost and rightmost.

    After has, have and had, `left` is a verb and stays. No rule recognises other verbs ("a building
    left in the field") or a `right` that is no side ("right behind"), as opposed to "the car on the
    left in the lot", so these are exchanged as well.
    """

    def other(match: re.Match[str]) -> str:
        word = SIDES[match[0].lower()]
        return word.capitalize() if match[0][0].isupper() else word

    return SIDE.sub(other, caption)


def _flipped(mask: np.ndarray | None) -> bytes | None:
    return None if mask is None else encode_image(np.ascontiguousarray(mask[:, ::-1]), "png", 0)


def _mirrored_masks(sample: TrainingSample) -> dict[str, bytes | None]:
    """The members MASKS of a mirrored sample. Raises DamagedShard for a damaged one."""
    change = sample.change()
    if change is not None:
        change = np.where(change > 0, 255, 0).astype(np.uint8)  # as it is stored
    masks = sample.mask(), sample.mask_before(), sample.mask_after(), change
    return {name: _flipped(mask) for name, mask in zip(MASKS, masks, strict=True)}


def _mirrored_facts(value: Any) -> Any:
    """Facts as a sample's JSON holds them: each place (u, v) becomes (1 − u, v)."""
    if isinstance(value, dict):
        return {name: _mirrored_fact(name, part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_mirrored_facts(part) for part in value]
    return value


def _mirrored_fact(name: str, value: Any) -> Any:
    if name == "location":
        return [1 - value[0], value[1]]
    if name == "reversed_captions":
        return [exchange_sides(caption) for caption in value]
    return _mirrored_facts(value)
