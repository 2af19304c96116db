"""What a renderer knows, learned by SCORER: its batches, its losses, and what is gained by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cc_prep.records import FACT_TYPES
from cc_train.systems.scorer.batches import ScorerBatches
from cc_train.systems.scorer.objective import Losses, ScorerObjective, Ways
from cc_train.systems.scorer.supervision import SceneLosses, Supervision
from tests import network_factory, pair_factory
from tests.network_factory import SAMPLES, WORDS

SIDE = pair_factory.GRID


def ordered(seed: int = 0, scenes: int = 16) -> dict[str, Any]:
    make = ScorerBatches(
        WORDS,
        network_factory.LENGTH,
        pair_factory.SOURCE,
        pairs_per_scene=2,
        grid=(SIDE, SIDE),
    )
    rngs = list(np.random.default_rng(seed).spawn(2 * scenes))
    return make(SAMPLES[: 2 * scenes], rngs)


def supervised(weights: SceneLosses, seed: int = 0) -> ScorerObjective:
    network = network_factory.scorer(48, seed=seed)
    halves: Any = ("changed", "unchanged")
    return ScorerObjective(
        network,
        None,
        score=lambda captioner: {},
        weights=Losses(contrast=0, cbr=0),
        ways=Ways(),
        weight_decay=0.0,
        device="cpu",
        halves=halves,
        supervision=Supervision(weights, 48, network.grid),
    )


def sums(one: ScorerObjective, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The losses of a step, added up over both halves."""
    counts = {name: value.clamp(min=1) for name, value in one.denominators(batch).items()}
    totals: dict[str, torch.Tensor] = {}
    for chunk in one.chunks(batch):
        for name, value in one.losses("model", chunk, 0, counts).items():
            totals[name] = totals.get(name, torch.zeros(())) + value
    return totals


def test_ordered_pairs_come_with_what_is_known_of_them() -> None:
    """Keeps away: facts of another pair, of the pair turned round, or of the other image."""
    kinds = set()
    for seed in range(8):
        batch = ordered(seed)
        assert len(batch["changed"]["ids"]) == len(batch["unchanged"]["ids"]) == 16
        assert (batch["unchanged"]["facts"][:, 0] == FACT_TYPES.index("none")).all()
        for row, ids in enumerate(batch["changed"]["ids"].tolist()):
            kind = FACT_TYPES[batch["changed"]["facts"][row, 0]]
            kinds.add(kind)
            word = {"add": "appeared", "drop": "disappeared", "move": "moved"}.get(kind, "turned")
            assert word in WORDS.decode(ids)
        for half in batch.values():
            images = half["before_after"].transpose(0, 1).flatten(0, 1)  # all before, all after
            place = (half["object_location"] * SIDE).long()
            shown = images[half["object_image"], :, place[:, 1], place[:, 0]]
            assert (shown.sum(1) == 4).all(), "there is an object where one is said to be"
            assert (images.amax(1) > 0).float().equal(half["centres"])
    assert kinds == {"add", "drop", "move", "color", "material"}


def test_the_losses_are_of_both_runs_together() -> None:
    one = supervised(SceneLosses())
    one.network.eval()
    batch = ordered()
    counts = one.denominators(batch)
    assert int(counts["type"]) == 32
    assert int(counts["color"]) == 16, "of changed pairs alone"
    words = (batch["changed"]["labels"] != -1).sum()
    assert int(counts["look"]) == int(words), "words of unchanged pairs may look anywhere"
    totals = sums(one, batch)
    assert one.supervision is not None
    expected = totals["caption"] + one.supervision.weights.total(totals) + 0.5 * totals["look"]
    torch.testing.assert_close(totals["total"], expected)


def test_a_batch_without_a_pair_of_one_run() -> None:
    """Keeps away: a training that ends where a batch happens to have changed pairs alone."""
    one = supervised(SceneLosses())
    changed = [sample for sample in SAMPLES if sample.meta["kind"] == "change"][:2]
    make = ScorerBatches(
        WORDS,
        network_factory.LENGTH,
        pair_factory.SOURCE,
        pairs_per_scene=1,
        grid=(SIDE, SIDE),
    )
    batch = make(changed, [np.random.default_rng(i) for i in range(len(changed))])
    assert len(batch["unchanged"]["ids"]) == 0
    assert int(one.denominators(batch)["cells"]) > 0
    assert torch.isfinite(sums(one, batch)["total"])


def test_a_look_that_weighs_0_is_left_out() -> None:
    assert "look" not in sums(supervised(SceneLosses(look=0)), ordered())


def test_pairs_of_which_nothing_is_known() -> None:
    """Keeps away: NaN on real images, of which nobody knows the facts."""
    make = ScorerBatches(
        WORDS,
        network_factory.LENGTH,
        pair_factory.SOURCE,
        pairs_per_scene=2,
        grid=(SIDE, SIDE),
    )
    bare = [pair_factory.without_facts(sample) for sample in SAMPLES[:4]]
    one = supervised(SceneLosses())
    totals = sums(one, make(bare, list(np.random.default_rng(0).spawn(4))))
    torch.testing.assert_close(totals["total"], totals["caption"])
    totals["total"].backward()


def looked_at(look: float, seed: int = 0) -> float:
    """How much of its look the decoder has at the change after 40 steps with such a weight."""
    one = supervised(SceneLosses(look=look), seed)
    parameters = [p for group in one.groups("model") for p in group["params"]]
    optimiser = torch.optim.AdamW(parameters, lr=3e-3)
    batch = ordered()
    for _ in range(40):
        optimiser.zero_grad()
        sums(one, batch)["total"].backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
    half = batch["changed"]
    seen = one.network.change_detector(*one.network.features(half["before_after"]))
    looked = one.network.speaker.looked(half["ids"], seen.difference).looked.softmax(2)
    place = half["places"].max(1).values[:, None, None].expand(-1, looked.shape[1], 1)
    return looked.gather(2, place)[..., 0][half["labels"] != -1].mean().item()


@pytest.mark.parametrize("look", [0.0, 0.5])
def test_words_learn_to_look_at_the_change(look: float) -> None:
    """With the loss the decoder looks at the change; captions alone leave it to chance for long."""
    share = looked_at(look)
    assert (share > 0.5) == (look > 0), share
