"""Samples of training shards → batches of two halves: changed pairs, and pairs of distractors.

A scene contributes its changed pair and its other view, or some of all ordered pairs of its images.
The contrast is within each half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

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


@dataclass(frozen=True)
class ScorerBatches:
    """`ScorerBatches(…)(samples, rngs)` is a batch for ScorerObjective.

    length: number of ids of a caption with its marks. backbone: the backbone of the features.
    halves: those of the data set. swap: the probability that the first image of a scene and its
    other view change places. pairs_per_scene: number of ordered pairs drawn from each scene, with
    no swap, see `OrderedPairBatches`. grid: rows and columns of the cells by which positions are
    given; with it, a half also holds the facts of its ordered pairs.
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
        """A batch by half: {before_after float16 [B, 2, C, h, w], ids, labels int64 [B, length]}.

        With a grid, each half also holds facts, places, and the objects and centres of its images,
        [2 · B], first all before and then all after, as in `OrderedPairBatches`. B may be 0 in one
        half. Raises UserError for samples without these features.
        """
        if self.pairs_per_scene is not None:
            return self._ordered(samples, rngs, self.pairs_per_scene)
        pairs: dict[str, list[np.ndarray]] = {half: [] for half in self.halves}
        encoded: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {half: [] for half in self.halves}
        arrays = self._arrays(samples, rngs)
        for sample, rng, array in zip(samples, rngs, arrays, strict=True):
            half = half_of(sample.meta.get("kind"))
            pairs[half].append(array)
            encoded[half].append(self.codec.encode(draw_caption(sample, rng), self.length))
        shape = arrays[0].shape
        return {half: self._half(pairs[half], encoded[half], shape) for half in self.halves}

    def _ordered(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator], count: int
    ) -> dict[str, Any]:
        for sample in samples:
            require_backbone(sample.key, sample.features, self.backbone)
        drawn: dict[str, list[tuple[Scene, OrderedPair, str]]] = {half: [] for half in self.halves}
        for scene, rng in ordered_pairs.scenes(samples, rngs):
            for number in ordered_pairs.draw(scene.pairs, count, rng):
                pair = scene.pairs[number]
                caption = pair.captions[int(rng.integers(len(pair.captions)))]
                drawn["changed" if pair.changed else "unchanged"].append((scene, pair, caption))
        shape = before_after(samples[0], "features").shape
        batch = {}
        for half, content in drawn.items():
            arrays = [
                np.stack((scene.features[pair.first], scene.features[pair.second]))
                for scene, pair, _ in content
            ]
            encoded = [self.codec.encode(caption, self.length) for *_, caption in content]
            batch[half] = self._half(arrays, encoded, shape)
            if self.grid is not None:
                ends = [(scene.objects, pair) for scene, pair, _ in content]
                shown = [objects[pair.first] for objects, pair in ends]
                shown += [objects[pair.second] for objects, pair in ends]
                batch[half] |= ordered_pairs.facts_of([pair for _, pair in ends], self.grid)
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

    def _half(
        self,
        pairs: Sequence[np.ndarray],
        encoded: Sequence[tuple[np.ndarray, np.ndarray]],
        shape: tuple[int, ...],
    ) -> dict[str, torch.Tensor]:
        count = len(pairs)
        features = np.stack(pairs) if count else np.zeros((0, *shape), np.float32)
        ids, labels = (
            np.array([one[part] for one in encoded], np.int64).reshape(count, self.length)
            for part in range(2)
        )
        return {
            "before_after": torch.from_numpy(features),
            "ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels),
        }


def half_of(kind: str | None) -> Half:
    """The half that a pair of this kind belongs to."""
    return "unchanged" if kind == NO_CHANGE else "changed"
