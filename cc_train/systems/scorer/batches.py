"""Samples of training shards → batches of two runs: changed pairs, and pairs of distractors.

A scene's changed pair and its other view come together. The contrast is within each run.
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
from cc_train.data.collate import before_after, draw_caption, require_backbone, stack
from cc_train.text import TextCodec

Run = Literal["changed", "unchanged"]
RUNS: tuple[Run, ...] = ("changed", "unchanged")


@dataclass(frozen=True)
class ScorerBatches:
    """`ScorerBatches(…)(samples, rngs)` is a batch for ScorerObjective.

    length: ids of a caption with its marks. backbone: SHA-256 of the weights whose features are
    taken. runs: those of the data set. swap: the chance that the first image of a scene and its
    other view change places.
    """

    text: TextCodec
    length: int
    backbone: str | None
    runs: tuple[Run, ...] = RUNS
    swap: float = 0.5

    def __call__(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> dict[str, Any]:
        """Of each run {before_after float16 [B, 2, C, h, w], ids, labels int64 [B, length]}.

        B may be 0 in one of them. Raises UserError for samples without these features.
        """
        pairs: dict[str, list[np.ndarray]] = {run: [] for run in self.runs}
        encoded: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {run: [] for run in self.runs}
        arrays = self._arrays(samples, rngs)
        for sample, rng, array in zip(samples, rngs, arrays, strict=True):
            run = run_of(sample.meta.get("kind"))
            pairs[run].append(array)
            encoded[run].append(self.text.encode(draw_caption(sample, rng), self.length))
        shape = arrays[0].shape
        return {run: self._run(pairs[run], encoded[run], shape) for run in self.runs}

    def _arrays(
        self, samples: Sequence[TrainingSample], rngs: Sequence[np.random.Generator]
    ) -> list[np.ndarray]:
        """Before and after of each sample; in some scenes the other view stands for before."""
        for sample in samples:
            require_backbone(sample.key, sample.features, self.backbone)
        arrays = list(stack(samples, [before_after(sample, "features") for sample in samples]))
        numbers = range(len(samples))
        for _, group in groupby(numbers, key=lambda i: scene_of(samples[i])):
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

    def _run(
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


def run_of(kind: str | None) -> Run:
    """The run that a pair of this kind belongs to."""
    return "unchanged" if kind == NO_CHANGE else "changed"


def scene_of(sample: TrainingSample) -> str:
    """The part of the key that the pairs of a scene share."""
    return sample.key.rpartition("-")[0] or sample.key
