"""A small SCORER, and scenes in numbers for it (`tests.pair_samples`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from cc_prep.formats.training_shards import TrainingSample
from cc_train.distributed import ALONE, Ranks
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.systems.scorer.batches import ScorerBatches
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.decoder import DecoderSettings
from cc_train.systems.scorer.encoder import EncoderSettings
from cc_train.systems.scorer.objective import Losses, ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import Reconstruction
from cc_train.text import Vocabulary
from tests import pair_samples

LENGTH = 12
PAPER = Ways()
SCENES = [pair_samples.scene(number) for number in range(16)]
SAMPLES = [sample for scene in SCENES for sample in scene]
CAPTIONS = [sample.meta["captions"][0] for sample in SAMPLES]
WORDS = Vocabulary.of(CAPTIONS, 1)


def network(width: int = 32, layers: int = 2, seed: int = 0) -> ScorerCaptioner:
    """Without dropout, from a seed."""
    torch.manual_seed(seed)
    encoder = EncoderSettings(width=width, heads=4, layers=layers, dropout=0.0)
    decoder = DecoderSettings(word_width=16, heads=4, layers=1, length=LENGTH, dropout=0.0)
    backbone = FrozenBackbone(None, pair_samples.BACKBONE)
    return ScorerCaptioner(backbone, (32, 32), encoder, decoder, WORDS)


def objective(
    weights: Losses,
    ways: Ways = PAPER,
    ranks: Ranks = ALONE,
    width: int = 32,
    seed: int = 0,
) -> ScorerObjective:
    scorer = network(width, seed=seed)
    reconstruction = Reconstruction(width, 8) if weights.cbr else None
    halves: Any = ("changed", "unchanged")
    return ScorerObjective(
        scorer,
        reconstruction,
        score=lambda captioner: {},
        weights=weights,
        ways=ways,
        weight_decay=0.0,
        device="cpu",
        halves=halves,
        ranks=ranks,
    )


def batch(samples: Sequence[TrainingSample], seed: int = 0, swap: float = 0.5) -> dict[str, Any]:
    make = ScorerBatches(WORDS, LENGTH, pair_samples.SOURCE, swap=swap)
    return make(samples, list(np.random.default_rng(seed).spawn(len(samples))))
