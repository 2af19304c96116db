"""The pair captioner learns: 16 planted scenes are said right, with facts or captions alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.text import Vocabulary
from tests import pair_factory
from tests.overfitting import Learning, overfit

SCENES = [pair_factory.scene(number) for number in range(16)]
SAMPLES = [sample for scene in SCENES for sample in scene]
CAPTIONS = [sample.meta["captions"][0] for sample in SAMPLES]
TURNED = [sample.meta["facts"]["reversed_captions"][0] for sample in SAMPLES]
WORDS = Vocabulary.of([*CAPTIONS, *TURNED], 1)
ENCODER = EncoderSettings(width=48, heads=4, dropout=0.0)
DECODER = DecoderSettings(width=48, heads=4, hidden=96, layers=1, length=12, dropout=0.0)
# What is left when captions alone teach: no facts, no places, no objects.
CAPTIONS_ALONE = Losses(type=0, attributes=0, new_color=0, location=0, objects=0, centres=0)

# By chance, looks are at ln 2 to ln 8, places and objects at ln 16 and more; centres at 0.7.
FACTS = ("type", "color", "shape", "material", "size", "new_color", "location_before", "objects")
ALL_GOALS = {**dict.fromkeys(FACTS, 0.2), "centres": 0.1}


def frozen(network: nn.Module) -> FrozenBackbone:
    return FrozenBackbone(network, pair_factory.BACKBONE)


def objective(weights: Losses, attend_grid: bool = True, seed: int = 0) -> PairObjective:
    torch.manual_seed(seed)
    network = PairCaptioner(frozen(nn.Identity()), (32, 32), ENCODER, DECODER, WORDS, attend_grid)
    return PairObjective(network, lambda captioner: {}, weights, 0.0, 0.0, "cpu")


def learn(weights: Losses, goals: dict[str, float], right: int, seed: int = 0) -> Learning:
    """Until every loss in `goals` is below its own, and so many captions are right."""
    one = objective(weights, seed=seed)
    make = OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE)

    def is_learned(losses: dict[str, float]) -> bool:
        low = all(losses[name] < goal for name, goal in goals.items())
        return low and said_right(one.network) >= right

    def batches() -> Iterator[dict[str, Any]]:
        for step in itertools.count():
            yield make(SAMPLES, list(np.random.default_rng([seed, step]).spawn(len(SAMPLES))))

    return overfit(one, batches(), 300, 3e-3, is_learned)


def said_right(network: PairCaptioner) -> int:
    """How many of the 32 pairs get their own caption, word for word."""
    features = np.stack([sample.features.values for sample in SAMPLES])  # type: ignore[union-attr]
    spoken = network.eval().caption(torch.from_numpy(features))
    return sum(one.text == caption for one, caption in zip(spoken, CAPTIONS, strict=True))


# Half of the captions say that nothing changed.
WAYS = {"facts": (Losses(), ALL_GOALS, 30), "captions alone": (CAPTIONS_ALONE, {}, 28)}


@pytest.mark.parametrize("way", WAYS)
def test_it_overfits_what_the_renderer_knows(way: str) -> None:
    """Keeps away: a loss that is wired to the wrong pair, place or class."""
    assert learn(*WAYS[way]).is_done


OF_FACTS = [name for name in Losses.model_fields if name not in ("caption", "changes")]


@pytest.mark.parametrize("name", OF_FACTS)
def test_each_loss_is_left_out_by_its_weight(name: str) -> None:
    """Its gradient is that of the others alone."""
    batch = OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE)(
        SAMPLES[:8], [np.random.default_rng(i) for i in range(8)]
    )
    totals = {}
    for weight in (0.0, 1.0):
        values = dict.fromkeys(Losses.model_fields, 0.0) | {name: weight}
        one = objective(Losses(**values))
        one.network.eval()
        totals[weight] = one.losses("model", batch, 0, one.denominators(batch))["total"].item()
    assert totals[0.0] == 0
    assert totals[1.0] > 0


def test_a_step_is_the_sum_of_its_parts() -> None:
    """Losses are sums over denominators, so any division into micro-batches gives the same step."""
    one = objective(Losses())
    one.network.eval()
    rngs = [np.random.default_rng(i) for i in range(8)]
    batches = OrderedPairBatches(WORDS, 12, 2, pair_factory.SOURCE)
    whole = batches(SAMPLES[:8], rngs)
    rngs = [np.random.default_rng(i) for i in range(8)]
    halves = [batches(SAMPLES[:4], rngs[:4]), batches(SAMPLES[4:8], rngs[4:])]
    denominators = one.denominators(whole)
    total = one.losses("model", whole, 0, denominators)
    parts = [one.losses("model", half, 0, denominators) for half in halves]
    for name, value in total.items():
        of_parts = sum(float(part[name].detach()) for part in parts)
        assert float(value.detach()) == pytest.approx(of_parts, rel=1e-4)


def test_unchanged_pairs_have_no_looks_to_learn() -> None:
    """Keeps away: a class that stands for "none" pulling at the attributes."""
    batch = OrderedPairBatches(WORDS, 12, 1, pair_factory.SOURCE)(
        [SAMPLES[1]], [np.random.default_rng(0)]
    )
    denominators = objective(Losses()).denominators(batch)
    assert int(denominators["type"]) == 1
    assert all(
        int(denominators[name]) == 0 for name in ("color", "size", "new_color", "location_after")
    )


def test_the_frozen_backbone_is_in_no_checkpoint() -> None:
    """Keeps away: checkpoints of which most is what never changes, and a backbone that stays behind
    when the captioner moves."""
    backbone = nn.Conv2d(3, 4, 1)
    network = PairCaptioner(frozen(backbone), (32, 32), ENCODER, DECODER, WORDS)
    assert not [name for name in network.state_dict() if name.startswith("backbone")]
    assert not any(p.requires_grad for p in network.backbone.parameters())
    network.train()
    assert not network.backbone.training
    assert next(network.double().backbone.parameters()).dtype == torch.float64


def test_images_have_the_features_that_shards_hold() -> None:
    """Keeps away: confidences that differ between a pair's shards and its images, and that depend
    on the other pairs of a batch."""
    torch.manual_seed(0)
    backbone = nn.Conv2d(3, 4, 2, 2)
    with_network = FrozenBackbone(backbone, BackboneSpec("conv", pair_factory.DIGEST, (4, 16, 16)))
    network = PairCaptioner(with_network, (32, 32), ENCODER, DECODER, WORDS)
    images = torch.randint(0, 256, (3, 2, 32, 32, 3), dtype=torch.uint8)
    features = network.features(images)
    pixels = images.flatten(0, 1).permute(0, 3, 1, 2) / 255
    stored = with_network.compute(pixels)
    assert stored.dtype == torch.float16
    assert torch.equal(features.flatten(0, 1), stored.float())
    assert torch.equal(network.features(images[1:2]), features[1:2])
