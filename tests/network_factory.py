"""Small captioners and what trains them: SCORER, the chain, a line, and one without any network.

SCORER and the chain see planted scenes (`tests.pair_factory`), of features and masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.formats.training_shards import TrainingSample
from cc_train.captioner import Attention, Caption, Inputs
from cc_train.distributed import ALONE, Ranks
from cc_train.layers import caption_decoder, pair_encoder
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.runs.checkpoints import Criterion
from cc_train.systems.chain.batches import ChainBatches
from cc_train.systems.chain.captioner import ChainCaptioner, Feedback
from cc_train.systems.chain.objective import ChainObjective
from cc_train.systems.chain.objective import Losses as ChainLosses
from cc_train.systems.chain.regions import RegionSettings
from cc_train.systems.scorer import decoder, encoder
from cc_train.systems.scorer.batches import ScorerBatches
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.objective import Losses as ScorerLosses
from cc_train.systems.scorer.objective import ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import Reconstruction
from cc_train.text import Vocabulary
from cc_train.training.objective import Objective
from tests import pair_factory

SCENES = [[pair_factory.with_masks(s) for s in pair_factory.scene(n)] for n in range(16)]
SAMPLES = [sample for scene in SCENES for sample in scene]
CAPTIONS = [sample.meta["captions"][0] for sample in SAMPLES]
REVERSED = [sample.meta["facts"]["reversed_captions"][0] for sample in SAMPLES]
WORDS = Vocabulary.of([*CAPTIONS, *REVERSED], 1)
LENGTH = 12
PAPER = Ways()
CHAIN_WIDTH = 48
TALKATIVE_SIZE = (16, 16)
TALKATIVE_WORDS = ("the", "cube", "moved")
CHAIN_BATCHES = ChainBatches(WORDS, LENGTH, 2, pair_factory.SOURCE, queries=4)


def scorer(width: int = 32, layers: int = 2, seed: int = 0) -> ScorerCaptioner:
    """A SCORER without dropout, from a seed."""
    torch.manual_seed(seed)
    return ScorerCaptioner(
        FrozenBackbone(None, pair_factory.BACKBONE),
        (pair_factory.SIDE, pair_factory.SIDE),
        encoder.EncoderSettings(width=width, heads=4, layers=layers, dropout=0.0),
        decoder.DecoderSettings(word_width=16, heads=4, layers=1, length=LENGTH, dropout=0.0),
        WORDS,
    )


def scorer_objective(
    weights: ScorerLosses,
    ways: Ways = PAPER,
    ranks: Ranks = ALONE,
    width: int = 32,
    seed: int = 0,
) -> ScorerObjective:
    """What trains a `scorer`."""
    network = scorer(width, seed=seed)
    reconstruction = Reconstruction(width, 8) if weights.cbr else None
    halves: Any = ("changed", "unchanged")
    return ScorerObjective(
        network,
        reconstruction,
        score=lambda captioner: {},
        weights=weights,
        ways=ways,
        weight_decay=0.0,
        device="cpu",
        halves=halves,
        ranks=ranks,
    )


def scorer_batch(
    samples: Sequence[TrainingSample], seed: int = 0, swap: float = 0.5
) -> dict[str, Any]:
    """A batch of both halves of scenes. swap: how often an unchanged pair is turned."""
    make = ScorerBatches(WORDS, LENGTH, pair_factory.SOURCE, swap=swap)
    return make(samples, list(np.random.default_rng(seed).spawn(len(samples))))


def chain(rounds: int = 1, feedback: Feedback = "text", seed: int = 0) -> ChainCaptioner:
    """A chain without dropout, from a seed."""
    torch.manual_seed(seed)
    return ChainCaptioner(
        FrozenBackbone(nn.Identity(), pair_factory.BACKBONE),
        size=(pair_factory.SIDE, pair_factory.SIDE),
        encoder=pair_encoder.EncoderSettings(width=CHAIN_WIDTH, heads=4, dropout=0.0),
        regions=RegionSettings(queries=4, pixel_width=16, layers=1, dropout=0.0),
        decoder=caption_decoder.DecoderSettings(
            width=CHAIN_WIDTH, heads=4, hidden=96, layers=1, length=LENGTH, dropout=0.0
        ),
        codec=WORDS,
        mask_classes=("change",),
        rounds=rounds,
        feedback=feedback,
    )


def chain_objective(
    network: ChainCaptioner,
    weights: ChainLosses,
    sampled: float = 0.0,
    ranks: Ranks = ALONE,
    trunk_rate: float = 1.0,
) -> ChainObjective:
    """What trains a `chain`."""
    return ChainObjective(
        network,
        lambda captioner: {},
        weights=weights,
        sampled=sampled,
        label_smoothing=0.0,
        weight_decay=0.0,
        device="cpu",
        ranks=ranks,
        trunk_rate=trunk_rate,
    )


def chain_batch(samples: Sequence[TrainingSample], seed: int = 0) -> dict[str, Any]:
    """Two ordered pairs of each scene."""
    return CHAIN_BATCHES(samples, list(np.random.default_rng(seed).spawn(len(samples))))


def features() -> Tensor:
    """Features of all samples, float16 [B, 2, C, h, w]."""
    stacked = np.stack([sample.features.values for sample in SAMPLES])  # type: ignore[union-attr]
    return torch.from_numpy(stacked)


class Line(Objective):
    """The smallest training there is. nan_at: the step whose loss is no number."""

    criterion = Criterion("figure", True)

    def __init__(self, nan_at: int | None = None, gradient: float = 1.0) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(2, 1))
        self.nan_at, self.gradient = nan_at, gradient

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return [{"params": list(self.network.parameters())}]

    def denominators(self, batch: Any) -> dict[str, Tensor]:
        return {"n": torch.tensor(len(batch["x"]))}

    def losses(
        self, phase: str, batch: Any, step: int, denominators: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        output = self.network(batch["x"]).sum() / denominators["n"]
        output.register_hook(lambda gradient: gradient * self.gradient)
        return {"total": output * math.nan if step == self.nan_at else output}

    def validate(self, network: nn.Module) -> tuple[dict[str, float], np.ndarray | None]:
        return {"figure": 1.0}, None


def line_batch(number: int) -> dict[str, Tensor]:
    return {"x": torch.ones(4, 2)}


class Talkative:
    """Says everything that a captioner can say, at once and without any network.

    It looks at one cell of 2 × 2 for each word, and at another one for the next.
    """

    inputs = Inputs(TALKATIVE_SIZE)
    device = torch.device("cpu")

    def caption(self, before_after: Tensor, beams: int = 1) -> list[Caption]:
        maps = np.zeros((len(TALKATIVE_WORDS), 2, 2), np.float32)
        maps[range(len(TALKATIVE_WORDS)), (0, 0, 1), (0, 1, 0)] = 1
        mask = np.zeros(TALKATIVE_SIZE, np.uint8)
        mask[4:8, 4:8], mask[8:10, 4:8] = 1, 2
        text = " ".join(TALKATIVE_WORDS)
        ranked = tuple((f"{text} {rank}", -float(rank)) for rank in range(beams))
        if beams > 1:
            return [Caption(ranked[0][0], ranked) for _ in before_after]
        looked = Attention(TALKATIVE_WORDS, maps)
        return [Caption(text, (), mask, -1.0, 1.0, 0.75, looked) for _ in before_after]

    def imagine(self, before_after: Tensor) -> Tensor:
        return torch.cat((before_after[:, :1], before_after), dim=1)
