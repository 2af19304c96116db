"""The chain learns: 16 planted pairs are said and masked right, by every loss that it has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from cc_prep.media import images
from cc_train.data import ordered_pairs
from cc_train.systems.chain import captioner, consistency
from cc_train.systems.chain.batches import ChainBatches
from cc_train.systems.chain.objective import PARTS, Losses
from cc_train.text import IGNORED
from tests import pair_factory
from tests.network_factory import (
    CAPTIONS,
    CHAIN_BATCHES,
    CHAIN_WIDTH,
    SAMPLES,
    SCENES,
    WORDS,
    chain,
    chain_batch,
    chain_objective,
    features,
)
from tests.overfitting import Learning, overfit


def learn(seed: int = 0) -> Learning:
    """Until 14 of 16 captions are right and the masks overlap the true ones by 0.8."""
    one = chain_objective(chain(seed=seed), Losses(), 0.5)
    few = SAMPLES[:16]
    true = np.stack([sample.mask() for sample in few])

    def is_learned(_: dict[str, float]) -> bool:
        spoken = one.network.caption(features()[:16])
        right = sum(s.text == c for s, c in zip(spoken, CAPTIONS[:16], strict=True))
        masks = np.stack([one.mask for one in spoken])
        assert masks.dtype == np.uint8
        overlap = ((masks > 0) & (true > 0)).sum() / ((masks > 0) | (true > 0)).sum()
        # A square's corners are round on a grid of 8 × 8.
        return right >= 14 and overlap >= 0.8

    def batches() -> Iterator[dict[str, Any]]:
        for step in itertools.count():
            yield chain_batch(few, 1000 * seed + step)

    return overfit(one, batches(), 300, 3e-3, is_learned, every=20)


def test_it_overfits_planted_pairs() -> None:
    """Keeps away: a loss wired to the wrong pair, side or region; rounds that undo what was right;
    masks turned round or shifted."""
    assert learn().is_done


def test_each_loss_is_left_out_by_its_weight() -> None:
    """Keeps away: a term of consistency that cannot be switched off, or that is not there."""
    batch = chain_batch(SAMPLES[:8])
    none = dict.fromkeys(Losses.model_fields, 0.0)
    for name in ("mask", "dice", "region", "region_class", "pointing", "contrast", "agreement"):
        one = chain_objective(chain(), Losses(**{**none, name: 1.0}))
        one.network.eval()
        assert one.losses("model", batch, 0, one.denominators(batch))["total"] > 0, name
    one = chain_objective(chain(), Losses(**none))
    assert one.losses("model", batch, 0, one.denominators(batch))["total"] == 0


def test_facts_are_not_learned_by_a_frozen_trunk() -> None:
    """Keeps away: losses without a gradient that are computed, logged, and added to the total."""
    batch, facts = (
        chain_batch(SAMPLES[:8]),
        {"type", "color", "location_before", "objects", "centres"},
    )
    for rate in (0.0, 1.0):
        one = chain_objective(chain(), Losses(), trunk_rate=rate)
        losses = one.losses("model", batch, 0, one.denominators(batch))
        assert facts & losses.keys() == (facts if rate else set())
    frozen = chain_objective(chain(), Losses(), trunk_rate=0.0)
    losses = frozen.losses("model", batch, 0, frozen.denominators(batch))
    terms = [getattr(frozen.weights, name) * losses[name] for name in PARTS]
    expected = torch.stack(terms).sum()
    assert float(losses["total"].detach()) == pytest.approx(float(expected.detach()))
    losses["total"].backward()
    assert frozen.network.of_region[-1].weight.grad is not None


def test_a_step_is_the_sum_of_its_parts() -> None:
    """Keeps away: a division into micro-batches or processes that gives another step.

    The contrast is over a whole batch; without it all losses are sums over pairs.
    """
    one = chain_objective(chain(), Losses(contrast=0))
    assert (one.over, chain_objective(chain(), Losses()).over) == ("sum", "batch")
    one.network.eval()
    seeds = list(np.random.default_rng(0).spawn(8))
    whole = CHAIN_BATCHES(SAMPLES[:8], seeds)
    seeds = list(np.random.default_rng(0).spawn(8))
    halves = [CHAIN_BATCHES(SAMPLES[:4], seeds[:4]), CHAIN_BATCHES(SAMPLES[4:8], seeds[4:])]
    denominators = one.denominators(whole)
    total = one.losses("model", whole, 0, denominators)
    parts = [one.losses("model", half, 0, denominators) for half in halves]
    for name, value in total.items():
        assert value.item() == pytest.approx(sum(p[name].item() for p in parts), rel=1e-4), name


def test_pairs_with_and_without_masks_are_mixed() -> None:
    """Keeps away: a pair without a mask that is taught an empty one; a batch that has none."""
    plain = [sample for n in range(4) for sample in pair_factory.scene(n)]
    mixed = chain_batch([*SAMPLES[:4], *plain[4:8]])
    assert mixed["has_mask"].any()
    assert not mixed["has_mask"].all()
    one = chain_objective(chain(), Losses(contrast=0))
    one.network.eval()
    counts = one.denominators(mixed)
    alone = chain_batch(SAMPLES[:4])
    assert counts["masks"] == one.denominators(alone)["masks"]
    of_both = one.losses("model", mixed, 0, counts)
    of_masked = one.losses("model", alone, 0, one.denominators(alone))
    assert of_both["mask"].item() == pytest.approx(of_masked["mask"].item(), rel=1e-4)
    without = chain_batch(plain)
    counts = {name: count.clamp(min=1) for name, count in one.denominators(without).items()}
    losses = one.losses("model", without, 0, counts)
    assert losses["mask"] == losses["dice"] == losses["region"] == losses["pointing"] == 0
    assert losses["caption"] > 0


def test_a_turned_pair_has_its_sides_exchanged() -> None:
    """Keeps away: what vanished taught as what appeared."""
    scene = ordered_pairs.ordered_pairs([SCENES[2][0]], masks=True)  # an object is added
    there, back = scene.pairs
    assert there.masks is not None
    assert back.masks is not None
    assert (there.first, there.second) == (back.second, back.first)
    for one, other in ((there, back), (back, there)):
        assert np.array_equal(one.masks.before, other.masks.after)  # type: ignore[union-attr]
    assert there.masks.before is not None
    assert not there.masks.before.any()
    assert there.masks.after is not None
    assert there.masks.after.any()


def test_another_view_has_the_mask_of_the_second_image_alone() -> None:
    """Keeps away: a mask laid over an image that another camera took."""
    scene = ordered_pairs.ordered_pairs(SCENES[0], masks=True)
    from_view = [pair for pair in scene.pairs if pair.changed and pair.first == 2]
    assert len(from_view) == 1
    masks = from_view[0].masks
    assert masks is not None
    assert (masks.union, masks.before) == (None, None)
    assert masks.after is not None


def test_controls_have_the_same_parameters() -> None:
    """Keeps away: a comparison in which refinement is no more than more parameters."""
    sizes = {
        (rounds, feedback): sum(p.numel() for p in chain(rounds, feedback).parameters())
        for rounds in (0, 2)
        for feedback in get_args(captioner.Feedback)
    }
    assert len(set(sizes.values())) == 1, sizes


def test_feedback_goes_the_ways_that_it_is_said_to() -> None:
    """Keeps away: a control that hears the words after all, or a chain that does not."""
    for feedback, masks_hear, words_hear in (
        ("text", True, True), ("constant", False, True), ("none", False, False),
    ):  # fmt: skip
        one = chain(1, feedback).eval()  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter in one.of_region[-1].parameters():
                parameter.normal_()
        look, first = one.glance(features()[:2])
        memory = one.attended(look, first)
        states = torch.randn(2, 4, CHAIN_WIDTH, requires_grad=True)
        ids = torch.full((2, 4), len(WORDS) - 1)
        again = one.refine(look, first, states, ids)
        gradient = torch.autograd.grad(again.masks.sum(), states, allow_unused=True)[0]
        assert (gradient is not None and bool(gradient.any())) == masks_hear, feedback
        hears = torch.autograd.grad(memory.square().sum(), first.tokens, allow_unused=True)[0]
        assert (hears is not None and bool(hears.any())) == words_hear, feedback


@pytest.mark.parametrize("feedback", get_args(captioner.Feedback))
def test_controls_caption_as_the_chain_does(feedback: captioner.Feedback) -> None:
    """Keeps away: a control that trains, and fails at its first validation."""
    one = chain(2, feedback).eval()
    captions = one.caption(features()[:3])
    assert len(captions) == 3
    assert all(caption.mask is not None for caption in captions)


def test_rounds_end_when_nothing_changes() -> None:
    """Keeps away: rounds that go on for pairs that are done; a batch that stops for its first."""
    one = chain(5).eval()
    with torch.no_grad():
        one.regions.round.look[0].out.weight.zero_()  # the words then change nothing
    _, masks, rounds = one.rounds_of(features()[:6])
    assert max(rounds) < 5
    alone = [one.rounds_of(features()[i : i + 1]) for i in range(6)]
    assert rounds == [taken[0] for _, _, taken in alone]
    assert torch.equal(masks, torch.cat([mask for _, mask, _ in alone]))
    assert chain(0).eval().rounds_of(features()[:2])[2] == [0, 0]


def test_a_side_of_another_class_than_the_union_teaches_nothing() -> None:
    """Keeps away: a target that no masks can reach, where a tree became a building."""
    tree, building = (
        np.ones((pair_factory.SIDE, pair_factory.SIDE), np.uint8),
        np.full((pair_factory.SIDE, pair_factory.SIDE), 2, np.uint8),
    )
    before, after = (images.encode_image(mask, "png", 0) for mask in (tree, building))
    sample = SCENES[0][0]
    meta = {**sample.meta, "mask_classes": ["tree", "building"]}
    both = replace(sample, meta=meta, mask_png=after, mask_before_png=before, mask_after_png=after)
    batch = ChainBatches(WORDS, 12, 9, pair_factory.SOURCE)([both], [np.random.default_rng(0)])
    known = [tuple(row) for row in batch["has_mask"].tolist()]
    assert sorted(known) == [(True, False, True), (True, True, False)], "and turned round"


def test_words_and_not_the_end_mark_look_at_the_change() -> None:
    """Keeps away: an end mark that is pulled to the change, where no word is said."""
    one = chain_objective(
        chain(), Losses(**{**dict.fromkeys(Losses.model_fields, 0.0), "pointing": 1.0})
    )
    batch, asked = chain_batch(SAMPLES[:4]), []
    plain = consistency.pointing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            consistency, "pointing", lambda *args: (asked.append(args[2]), plain(*args))[1]
        )
        one.losses("model", batch, 0, one.denominators(batch))
    rows = one._pointed(batch)
    words = (batch["labels"][rows] != IGNORED).sum(1) - 1
    assert asked[0].sum(1).tolist() == words.tolist()
