"""SCORER learns: 16 planted pairs are said right; and each of its settings does what it says."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cc_train.distributed import Ranks
from cc_train.layers.token_matching import contrast
from cc_train.systems.scorer.batches import ScorerBatches
from cc_train.systems.scorer.encoder import MAX_SCALE
from cc_train.systems.scorer.objective import Losses, Sampling, ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import sentence_of
from tests import network_factory, pair_factory
from tests.network_factory import CAPTIONS, SAMPLES, WORDS
from tests.overfitting import Learning, overfit

PAPER, CODE = Ways(), Ways(per_head=False, trained_cbr=False, slots=True, sampled=True)
ALL = Losses(contrast=0.1, cbr=0.05)


def learn(seed: int = 0) -> Learning:
    """Until 14 of 16 captions are right, and the contrast finds each pair among 8."""
    one = network_factory.scorer_objective(ALL, Ways(per_head=False), width=48, seed=seed)
    first: dict[str, float] = {}

    def is_learned(losses: dict[str, float]) -> bool:
        first.update(losses if not first else {})
        low = losses["contrast"] < 0.3 * math.log(8) and losses["cbr"] < first["cbr"]
        return low and said_right(one) >= 14

    batch = network_factory.scorer_batch(SAMPLES[:16], swap=0.0)
    return overfit(one, itertools.repeat(batch), 500, 3e-3, is_learned)


def test_it_overfits_planted_pairs() -> None:
    """Keeps away: a loss that is wired to the wrong pair or half."""
    assert learn().is_done


def said_right(one: ScorerObjective) -> int:
    """How many of the first 16 pairs get their own caption."""
    pairs = network_factory.scorer_batch(SAMPLES[:16], swap=0.0)
    captions = [
        caption.text
        for half in ("changed", "unchanged")
        for caption in one.network.eval().caption(pairs[half]["before_after"])
    ]
    right = [*CAPTIONS[:16:2], *CAPTIONS[1:16:2]]
    return sum(a == b for a, b in zip(captions, right, strict=True))


def losses(weights: Losses, ways: Ways, seed: int = 0) -> dict[str, float]:
    one = network_factory.scorer_objective(weights, ways)
    batch = network_factory.scorer_batch(SAMPLES[:8], seed)
    denominators = one.denominators(batch)
    sums: dict[str, float] = {}
    for chunk in one.chunks(batch):
        for name, value in one.losses("model", chunk, 0, denominators).items():
            sums[name] = sums.get(name, 0) + float(value.detach())
    return sums


def test_a_weight_of_0_leaves_a_loss_out() -> None:
    alone = losses(Losses(contrast=0, cbr=0), PAPER)
    assert alone.keys() == {"total", "caption", "word_accuracy"}
    assert alone["total"] == alone["caption"]
    both = losses(Losses(contrast=0.5, cbr=0.25), PAPER)
    expected = both["caption"] + 0.5 * both["contrast"] + 0.25 * both["cbr"]
    assert both["total"] == pytest.approx(expected)


def test_each_way_changes_its_own_loss_alone() -> None:
    """Keeps away: a setting that is wired to nothing, or to another one's part."""
    base = losses(ALL, CODE)
    changes = {
        "per_head": (Ways(True, False, True, True), {"contrast", "cbr"}),
        "slots": (Ways(False, False, False, True), {"cbr"}),
        "trained_cbr": (Ways(False, True, True, True), set()),
        "sampled": (Ways(False, False, True, False), set()),
    }
    for name, (ways, changed) in changes.items():
        ours = losses(ALL, ways)
        different = {n for n in ours if ours[n] != pytest.approx(base[n]) and n != "total"}
        assert different == changed, name


def test_frozen_cbr_is_not_trained_but_passes_gradients() -> None:
    one = network_factory.scorer_objective(Losses(contrast=0, cbr=1), CODE)
    trained = {id(p) for group in one.groups("model") for p in group["params"]}
    assert one.reconstruction is not None
    assert not any(id(p) in trained for p in one.reconstruction.parameters())
    batch = network_factory.scorer_batch(SAMPLES[:8])
    for chunk in one.chunks(batch):
        one.losses("model", chunk, 0, one.denominators(batch))["cbr"].backward()
    gradients = [one.network.change_detector.img[0].weight, one.network.speaker.core.embed.weight]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in gradients)
    assert all(p.grad is None for p in one.reconstruction.parameters())
    one = network_factory.scorer_objective(Losses(contrast=0, cbr=1), PAPER)
    trained = {id(p) for group in one.groups("model") for p in group["params"]}
    assert one.reconstruction is not None
    assert all(id(p) in trained for p in one.reconstruction.parameters())


def test_the_temperature_is_bounded() -> None:
    one = network_factory.scorer_objective(ALL)
    assert one.reconstruction is not None
    last = one.network.change_detector.scorer[-1].attention.logit_scale
    for scale in (last, one.reconstruction.contra.logit_scale):
        scale.data.fill_(9.0)
    one.after_step(0)
    for scale in (last, one.reconstruction.contra.logit_scale):
        assert scale.item() == pytest.approx(MAX_SCALE)


def test_a_batch_without_one_run() -> None:
    """Keeps away: NaN where a step's scenes have no distractor."""
    one = network_factory.scorer_objective(ALL)
    batch = network_factory.scorer_batch(SAMPLES[:8:2])
    assert [chunk["half"] for chunk in one.chunks(batch)] == ["changed"]
    denominators = {n: v.clamp(min=1) for n, v in one.denominators(batch).items()}
    empty = {"half": "unchanged", **batch["unchanged"]}
    losses = one.losses("model", empty, 0, denominators)
    assert all(float(value) == 0 for value in losses.values())
    losses["total"].backward()
    [alone] = one.chunks(batch)
    with torch.inference_mode():
        total = one.losses("model", alone, 0, denominators)
        counted = {**denominators, "unchanged": denominators["changed"]}
        half = one.losses("model", alone, 0, counted)
    assert float(total["caption"]) == pytest.approx(2 * float(half["caption"])), "the only half"


def test_a_short_caption_counts_on_many_ranks() -> None:
    """Keeps away: a half with few words that, on many processes, did not count among the halves."""
    one = network_factory.scorer_objective(Losses(contrast=0, cbr=0))
    batch = network_factory.scorer_batch(SAMPLES[:8])
    [changed, _] = one.chunks(batch)
    counts = one.denominators(batch)
    alone = one.losses("model", changed, 0, counts)["total"]
    world = 64
    one.ranks = Ranks(world=world)
    shared = {name: count / world for name, count in counts.items()}
    assert min(shared.values()) < 1
    expected = world * float(alone)
    assert float(one.losses("model", changed, 0, shared)["total"]) == pytest.approx(expected)


def test_the_sentence_is_over_words_or_slots() -> None:
    hidden = torch.arange(12.0).view(1, 4, 3)
    is_word = torch.tensor([[1, 1, 0, 0]])
    assert sentence_of(hidden, is_word, False).tolist() == [[1.5, 2.5, 3.5]]
    assert sentence_of(hidden, is_word, True).tolist() == [[0.75, 1.25, 1.75]]


def test_drawn_captions_depend_on_the_seed_alone() -> None:
    """The public code's validation: other words than greedy ones, but the same ones again."""
    network = network_factory.scorer().eval()
    pairs = network_factory.scorer_batch(SAMPLES)["changed"]["before_after"]
    drawn = [[c.text for c in Sampling(network, seed).caption(pairs)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != [caption.text for caption in network.caption(pairs)]


def test_each_word_says_where_it_looked() -> None:
    """Keeps away: maps that are one word off, or of marks."""
    network = network_factory.scorer().eval()
    pairs = network_factory.scorer_batch(SAMPLES[:6])["changed"]["before_after"]
    memory = network.memory(pairs)
    for number, caption in enumerate(network.caption(pairs)):
        assert caption.attention is not None
        words, maps = caption.attention.words, caption.attention.maps
        assert " ".join(words) == caption.text
        assert maps.shape == (len(words), pair_factory.GRID, pair_factory.GRID)
        ids = torch.tensor([[WORDS.marks.begin, *(WORDS.ids[word] for word in words)]])
        looked = network.speaker.looked(ids, memory[number][None]).looked.softmax(2)
        expected = looked[0, : len(words)].unflatten(1, network.grid)
        torch.testing.assert_close(torch.from_numpy(maps), expected)
    assert all(caption.attention is None for caption in network.caption(pairs, beams=2))


def test_the_contrast_compares_rows_with_their_own_column() -> None:
    """Low where each pair fits best itself, high where each fits its neighbour best."""
    own = 20 * torch.eye(16)
    assert float(contrast(own)) < 1e-3
    assert float(contrast(own.roll(1, 0))) > 10
    one = network_factory.scorer_objective(ALL)
    batch = network_factory.scorer_batch(SAMPLES)
    seen = one.network.change_detector(*one.network.features(batch["changed"]["before_after"]))
    assert all(matching.shape == (16, 16) for matching in one.matchings(seen))


def test_several_pairs_of_a_scene_are_no_negatives_of_each_other() -> None:
    """Keeps away: (before, after) and (view, after) whose same after image is called wrong."""
    make = ScorerBatches(WORDS, network_factory.LENGTH, pair_factory.SOURCE, pairs_per_scene=3)
    batch = make(SAMPLES[:8], list(np.random.default_rng(0).spawn(8)))
    one = network_factory.scorer_objective(ALL)
    counts = one.denominators(batch)
    changed = {"half": "changed", **batch["changed"]}
    apart = {**changed, "scene": torch.arange(8)}
    ours = one.losses("model", changed, 0, counts)
    with torch.inference_mode():
        whole = one.losses("model", apart, 0, counts)
    for name in ("contrast", "cbr"):
        assert float(ours[name].detach()) < float(whole[name]), name
    alone = {"half": "changed", **make(SAMPLES[:2], [np.random.default_rng(0)] * 2)["changed"]}
    assert float(one.losses("model", alone, 0, counts)["contrast"].detach()) == 0
    pair = replace(make, pairs_per_scene=2)(SAMPLES[:8], list(np.random.default_rng(0).spawn(8)))
    for chunk in one.chunks(pair):
        same = {**chunk, "scene": torch.arange(4) + 10}
        ours, expected = (one.losses("model", c, 0, counts) for c in (chunk, same))
        assert all(torch.equal(ours[name], expected[name]) for name in ours)
