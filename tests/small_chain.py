"""A small chain on planted pairs, as tests of its objective and of several processes train it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from cc_prep.formats.training_shards import TrainingSample
from cc_train.distributed import ALONE, Ranks
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.systems.chain.batches import ChainBatches
from cc_train.systems.chain.captioner import ChainCaptioner, Feedback
from cc_train.systems.chain.objective import ChainObjective, Losses
from cc_train.systems.chain.regions import RegionSettings
from cc_train.text import Vocabulary
from tests import pair_samples

SCENES = [[pair_samples.with_masks(s) for s in pair_samples.scene(n)] for n in range(16)]
SAMPLES = [sample for scene in SCENES for sample in scene]
CAPTIONS = [sample.meta["captions"][0] for sample in SAMPLES]
TURNED = [sample.meta["facts"]["reversed_captions"][0] for sample in SAMPLES]
WORDS = Vocabulary.of([*CAPTIONS, *TURNED], 1)
SIDE, GRID, WIDTH = pair_samples.SIDE, pair_samples.GRID, 48
ENCODER = EncoderSettings(width=WIDTH, heads=4, dropout=0.0)
REGIONS = RegionSettings(queries=4, pixel_width=16, layers=1, dropout=0.0)
DECODER = DecoderSettings(width=WIDTH, heads=4, hidden=96, layers=1, length=12, dropout=0.0)
BATCHES = ChainBatches(WORDS, 12, 2, pair_samples.SOURCE, queries=4)


def network(rounds: int = 1, feedback: Feedback = "text", seed: int = 0) -> ChainCaptioner:
    """The same one each time for a seed."""
    torch.manual_seed(seed)
    return ChainCaptioner(
        FrozenBackbone(nn.Identity(), pair_samples.BACKBONE),
        size=(SIDE, SIDE),
        encoder=ENCODER,
        regions=REGIONS,
        decoder=DECODER,
        codec=WORDS,
        mask_classes=("change",),
        rounds=rounds,
        feedback=feedback,
    )


def objective(
    one: ChainCaptioner,
    weights: Losses,
    sampled: float = 0.0,
    ranks: Ranks = ALONE,
    trunk_rate: float = 1.0,
) -> ChainObjective:
    """What trains it."""
    return ChainObjective(
        one,
        lambda captioner: {},
        weights=weights,
        sampled=sampled,
        label_smoothing=0.0,
        weight_decay=0.0,
        device="cpu",
        ranks=ranks,
        trunk_rate=trunk_rate,
    )


def batch(samples: Sequence[TrainingSample], seed: int = 0) -> dict[str, Any]:
    """Two ordered pairs of each scene."""
    return BATCHES(samples, list(np.random.default_rng(seed).spawn(len(samples))))


def features() -> torch.Tensor:
    """Features of all samples, float16 [B, 2, C, h, w]."""
    stacked = np.stack([sample.features.values for sample in SAMPLES])  # type: ignore[union-attr]
    return torch.from_numpy(stacked)
