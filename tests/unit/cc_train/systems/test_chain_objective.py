"""The chain learns: 32 planted pairs are said and masked right, by every loss that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from cc_train.layers import caption_decoder, pair_encoder
from cc_train.systems.chain import captioner, regions
from cc_train.systems.chain.batches import ChainBatches
from cc_train.systems.chain.captioner import ChainCaptioner
from cc_train.systems.chain.objective import ChainObjective, Losses
from cc_train.text import Vocabulary
from tests import pair_samples

SCENES = [[pair_samples.with_masks(s) for s in pair_samples.scene(n)] for n in range(16)]
SAMPLES = [sample for scene in SCENES for sample in scene]
CAPTIONS = [sample.meta["captions"][0] for sample in SAMPLES]
TURNED = [sample.meta["facts"]["reversed_captions"][0] for sample in SAMPLES]
WORDS = Vocabulary.of([*CAPTIONS, *TURNED], 1)
SIDE = pair_samples.SIDE
SIZES = pair_encoder.Config(pair_samples.CHANNELS, pair_samples.GRID, pair_samples.GRID, 48, 4, 0.0)
REGIONS = regions.Config(queries=4, pixel_width=16, layers=1, dropout=0.0)
DECODER = caption_decoder.Config(len(WORDS), 48, 4, 96, 1, 12, 0.0)
BATCHES = ChainBatches(WORDS, 12, 2, pair_samples.DIGEST, queries=4)


def network(rounds: int = 1, feedback: captioner.Feedback = "text") -> ChainCaptioner:
    torch.manual_seed(0)
    return ChainCaptioner(
        nn.Identity(), pair_samples.DIGEST, (SIDE, SIDE), SIZES, REGIONS, DECODER, WORDS,
        rounds, feedback,
    )  # fmt: skip


def of(one: ChainCaptioner, weights: Losses, sampled: float = 0.0) -> ChainObjective:
    return ChainObjective(one, lambda captioner: {}, weights, sampled, 0.0, 0.0, "cpu")


def batch_of(samples: list[Any], seed: int = 0) -> dict[str, Any]:
    return BATCHES(samples, list(np.random.default_rng(seed).spawn(len(samples))))


def trained(steps: int) -> ChainObjective:
    one = of(network(), Losses(), 0.5)
    parameters = [*one.network.parameters(), *one.consistency.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(1, (step + 1) / 20) * (1 - step / steps)
        rng = np.random.default_rng(step)
        chosen = [sample for i in rng.permutation(len(SCENES))[:8] for sample in SCENES[i]]
        batch = batch_of(chosen, step)
        one.network.train()
        losses = one.losses("model", batch, step, one.denominators(batch))
        optimiser.zero_grad()
        losses["total"].backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    return one


def features() -> torch.Tensor:
    stacked = np.stack([sample.features.values for sample in SAMPLES])  # type: ignore[union-attr]
    return torch.from_numpy(stacked)


def test_it_overfits_planted_pairs() -> None:
    """Keeps away: a loss wired to the wrong pair, side or region; rounds that undo what was right;
    masks turned round or shifted."""
    one = trained(300)
    spoken = one.network.eval().caption(features())
    assert sum(s.text == c for s, c in zip(spoken, CAPTIONS, strict=True)) >= 30
    true = np.stack([sample.mask() for sample in SAMPLES])
    masks = np.stack([one.mask for one in spoken])
    overlap = ((masks > 0) & (true > 0)).sum() / ((masks > 0) | (true > 0)).sum()
    assert overlap >= 0.85  # a square's corners are round on a grid of 8 × 8
    assert masks.dtype == np.uint8
