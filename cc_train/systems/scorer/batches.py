"""Samples of training shards → batches of two halves: changed pairs, and pairs of distractors.

A scene contributes its changed pair and its other view, or some of all ordered pairs of its images.
The contrast is within each half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from cc_prep.formats.training_shards import TrainingSample
from cc_prep.records import NO_CHANGE
from cc_train.data import ordered_pairs
from cc_train.data.collate import FeatureSource, before_after, draw_caption, require_backbone, stack
from cc_train.data.ordered_pairs import Scene
from cc_train.data.shard_index import scene_of
from cc_train.data.supervision import OrderedPair
from cc_train.text import TextCodec

Half = Literal["changed", "unchanged"]
HALVES: tuple[Half, ...] = ("changed", "unchanged")


class Pair(NamedTuple):
    """One pair of a batch.

    Attributes:
        scene: The id of its scene, see `_scene_id`.
        features: Of before and after, [2, C, h, w].
        encoded: Ids and labels of its caption, [length] each.
    """

    scene: int
    features: np.ndarray
    encoded: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class ScorerBatches:
    """`ScorerBatches(…)(samples, rngs)` is a batch for ScorerObjective.

    Attributes:
        length: Number of ids of a caption with its marks.
        backbone: The backbone of the features.
        halves: Those of the data set.
        swap: The probability that the first image of a scene and its other view change places.
        pairs_per_scene: Number of ordered pairs drawn from each scene, with no swap, see
            `OrderedPairBatches`.
        grid: Rows and columns of the cells by which positions are given; with it, a half also holds
            the facts of its ordered pairs.
    """

    codec: TextCodec
    length: int
    backbone: FeatureSource | None
    halves: tuple[Half, ...] = HALVES
    swap: float = 0.5
    pairs_per_scene: int | None = None
    grid: tuple[int, int] | None = None

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        """A batch by half: {before_after [B, 2, C, h, w], ids, labels int64 [B, length], scene
        int64 [B]}.

        Pairs of one scene have the same `scene`, in both halves and in every batch, whichever
        process makes it.

        With a grid, each half also holds facts, places, and the objects and centres of its images,
        [2 · B], first all before and then all after, as in `OrderedPairBatches`. B may be 0 in one
        half.

        Raises:
            UserError: For samples without these features.
        """
        if self.pairs_per_scene is not None:
            return self._ordered(samples, rngs, self.pairs_per_scene)
        pairs: dict[str, list[Pair]] = {half: [] for half in self.halves}
        arrays = self._arrays(samples, rngs)
        for sample, rng, array in zip(samples, rngs, arrays, strict=True):
            encoded = self.codec.encode(draw_caption(sample, rng), self.length)
            scene = _scene_id(scene_of(sample.key))
            pairs[half_of(sample.meta.get("kind"))].append(Pair(scene, array, encoded))
        return {half: self._half(pairs[half], arrays[0].shape) for half in self.halves}

    def _ordered(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator], count: int
    ) -> dict[str, Any]:
        for sample in samples:
            require_backbone(sample.key, sample.features, self.backbone)
        drawn: dict[str, list[tuple[Scene, OrderedPair]]] = {half: [] for half in self.halves}
        pairs: dict[str, list[Pair]] = {half: [] for half in self.halves}
        names = [name for name, _ in groupby(scene_of(sample.key) for sample in samples)]
        for name, (scene, rng) in zip(names, ordered_pairs.scenes(samples, rngs), strict=True):
            for chosen in ordered_pairs.draw(scene.pairs, count, rng):
                pair = scene.pairs[chosen]
                caption = pair.captions[int(rng.integers(len(pair.captions)))]
                array = np.stack((scene.features[pair.first], scene.features[pair.second]))
                half = "changed" if pair.changed else "unchanged"
                drawn[half].append((scene, pair))
                encoded = self.codec.encode(caption, self.length)
                pairs[half].append(Pair(_scene_id(name), array, encoded))
        shape = before_after(samples[0], "features").shape
        batch = {}
        for half, content in drawn.items():
            batch[half] = self._half(pairs[half], shape)
            if self.grid is not None:
                shown = [scene.objects[pair.first] for scene, pair in content]
                shown += [scene.objects[pair.second] for scene, pair in content]
                batch[half] |= ordered_pairs.facts_of([pair for _, pair in content], self.grid)
                batch[half] |= ordered_pairs.objects_of(shown, self.grid)
        return batch

    def _arrays(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> list[np.ndarray]:
        """Before and after of each sample; in some scenes the other view replaces before."""
        for sample in samples:
            require_backbone(sample.key, sample.features, self.backbone)
        arrays = list(stack(samples, [before_after(sample, "features") for sample in samples]))
        numbers = range(len(samples))
        for _, group in groupby(numbers, key=lambda i: scene_of(samples[i].key)):
            scene = list(group)
            views = [i for i in scene if samples[i].meta.get("kind") == NO_CHANGE]
            same = len({samples[i].meta.get("before") for i in scene}) == 1
            if len(scene) < 2 or len(views) != 1 or not same:
                continue
            if rngs[scene[0]].random() >= self.swap:
                continue
            first, view = arrays[views[0]]
            arrays[views[0]] = np.stack((view, first))
            for i in scene:
                if i not in views:
                    arrays[i] = np.stack((view, arrays[i][1]))
        return arrays

    def _half(self, pairs: Sequence[Pair], shape: tuple[int, ...]) -> dict[str, torch.Tensor]:
        count = len(pairs)
        features = np.zeros((0, *shape), np.float32)
        if count:
            features = np.stack([pair.features for pair in pairs])
        ids, labels = (
            np.array([pair.encoded[part] for pair in pairs], np.int64).reshape(count, self.length)
            for part in range(2)
        )
        return {
            "before_after": torch.from_numpy(features),
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
            "scene": torch.tensor([pair.scene for pair in pairs], dtype=torch.long),
        }


def _scene_id(name: str) -> int:
    """A scene's id, 64 bits with a sign: a digest of its name, so that all processes agree."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def half_of(kind: str | None) -> Half:
    """The half that a pair of this kind belongs to."""
    return "unchanged" if kind == NO_CHANGE else "changed"
