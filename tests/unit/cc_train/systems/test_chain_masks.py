"""Masks of regions, their true ones, and the terms that make masks and words agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_train.distributed import Ranks
from cc_train.systems.chain import consistency, masks, matching
from cc_train.systems.chain.captioner import overlap
from cc_train.systems.chain.matching import Components
from cc_train.systems.chain.regions import Regions


def regions(classes: torch.Tensor, chances: torch.Tensor) -> Regions:
    return Regions(torch.zeros(*classes.shape[:2], 1), classes, torch.logit(chances))


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_mask_is_the_noisy_or_of_its_regions(seed: int, count: int, classes: int) -> None:
    """Keeps away: chances that are added up, or a union that is no union of its sides."""
    generator = torch.Generator().manual_seed(seed)
    of_class = 3 * torch.randn(2, count, 1 + classes, generator=generator)
    chance = torch.rand(2, count, 2, 3, 4, generator=generator).clamp(0.01, 0.99)
    together = regions(of_class, chance).evidence
    each = of_class.softmax(2)[..., 1:, None, None, None] * chance[:, :, None]
    plain = 1 - (1 - each).prod(1)
    assert torch.allclose(together.chance, plain, atol=1e-5)
    union = 1 - (1 - plain[:, :, 0]) * (1 - plain[:, :, 1])
    odds = masks.log_odds(together.sides)[:, :, 0]
    assert torch.allclose(odds.sigmoid(), union, atol=1e-5)


@pytest.mark.parametrize("value", [-60.0, 60.0])
def test_sure_regions_have_finite_gradients(value: float) -> None:
    """Keeps away: log(0) where a region is sure."""
    of_class = torch.tensor([[[value, -value]]], requires_grad=True)
    mask = torch.full((1, 1, 2, 2, 2), value, requires_grad=True)
    together = masks.evidence(of_class, mask)
    truth = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    known = torch.ones(1, 3, dtype=torch.bool)
    loss = masks.cross_entropy(together.logits((4, 4)), truth, known)
    loss.backward()
    assert loss.isfinite()
    assert of_class.grad is not None
    assert mask.grad is not None
    assert of_class.grad.isfinite().all()
    assert mask.grad.isfinite().all()


def test_masks_that_are_not_known_teach_nothing() -> None:
    """Keeps away: a pair without a mask that is taught that nothing changed."""
    logits = torch.randn(2, 1, 3, 4, 4)
    truth = torch.ones(2, 3, 4, 4, dtype=torch.uint8)
    known = torch.zeros(2, 3, dtype=torch.bool)
    assert masks.cross_entropy(logits, truth, known) == 0
    assert masks.dice(logits, truth, known) == 0
    assert not masks.present(truth, known, 1).any()


def test_class_ids_are_those_of_the_likeliest_class() -> None:
    logits = torch.tensor([[-1.0, 2.0, 1.0], [-2.0, 1.0, 3.0]]).view(1, 2, 1, 3)
    assert masks.classes_of(logits).tolist() == [[[0, 1, 2]]]


def test_components_are_counted_by_class_and_size() -> None:
    """Keeps away: two classes that touch as one region; specks that take a query."""
    mask = np.zeros((12, 12), np.uint8)
    mask[0:3, 0:3] = 1
    mask[3:6, 3:6] = 1  # touches the first at a corner
    mask[6:9, 3:6] = 2
    mask[11, 0:5] = 1  # five pixels
    parts, classes = matching.components(mask, 9)
    assert classes.tolist() == [1, 2]
    assert [int(part.sum()) for part in parts] == [18, 9]
    assert len(matching.components(mask, 1)[0]) == 1
    assert matching.components(np.zeros((3, 3), np.uint8), 9)[0].shape == (0, 3, 3)


def test_each_true_region_gets_the_query_that_fits_it() -> None:
    """Keeps away: costs that are transposed, or regions that are matched across pairs."""
    true = torch.zeros(3, 4, 4)
    true[0, :2], true[1, 2:], true[2, :, :2] = 1, 1, 1
    chance = torch.full((2, 3, 2, 4, 4), 0.01)
    chance[0, 2, 0, :2] = 0.99
    chance[0, 0, 1, 2:] = 0.99
    chance[1, 1, 0, :, :2] = 0.99
    one = regions(torch.zeros(2, 3, 2), chance)
    listed = Components(torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1]), true)
    rows, queries = matching.assign(one, listed)
    assert dict(zip(rows.tolist(), queries.tolist(), strict=True)) == {0: 2, 1: 0, 2: 1}


def test_costs_are_those_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, true = (
        torch.randn(3, 4, 4, generator=generator),
        torch.rand(2, 4, 4, generator=generator),
    )
    cost = matching.pair_cost(logits, true)
    for row, x in enumerate(logits):
        for column, y in enumerate(true):
            entropy = torch.nn.functional.binary_cross_entropy_with_logits(x, y)
            shared, total = (x.sigmoid() * y).sum(), (x.sigmoid() + y).sum()
            plain = entropy + 1 - (2 * shared + 1) / (total + 1)
            assert cost[row, column].item() == pytest.approx(plain.item(), rel=1e-5)


def test_rounds_settle_by_their_masks() -> None:
    one = torch.tensor([[[1, 1, 0]], [[0, 0, 0]], [[1, 2, 0]]])
    other = torch.tensor([[[1, 0, 0]], [[0, 0, 0]], [[1, 1, 0]]])
    assert overlap(one, other).tolist() == [0.5, 1.0, 0.5]


def test_words_that_look_inside_the_mask_cost_nothing() -> None:
    mask = torch.zeros(1, 8, 8, dtype=torch.uint8)
    mask[0, :4, :4] = 1
    words = torch.tensor([[True, True, False]])
    looked = torch.zeros(1, 3, 4)
    looked[0, :2, 0] = 0.5
    looked[0, 2, 3] = 1  # no word: the end of the sentence
    assert consistency.pointing(looked, mask, words, (2, 2)) == 0
    assert consistency.pointing(looked.flip(2), mask, words, (2, 2)) > 5


@pytest.mark.parametrize(("third", "changed"), [(2, (True, True, True)), (3, (False, False, True))])
def test_what_says_the_same_is_no_counterexample(third: int, changed: tuple[bool, ...]) -> None:
    """Keeps away: two pairs that are pushed apart although both say the same, as all unchanged
    pairs do, in whatever words."""
    vectors = torch.nn.functional.normalize(torch.randn(3, 8), dim=1)
    ids = torch.tensor([[1, 2], [1, third], [1, 4]])
    whole = consistency.contrast(vectors, vectors, ids, torch.tensor(changed), Ranks())
    scores = vectors @ vectors.T / consistency.TEMPERATURE
    scores[0, 1] = scores[1, 0] = float("-inf")
    plain = -scores.log_softmax(1).diagonal().mean()
    assert whole.item() == pytest.approx(plain.item(), rel=1e-5)
    with torch.autocast("cpu", torch.bfloat16):  # ten times a cosine needs more than 8 bits
        half = consistency.contrast(vectors, vectors, ids, torch.tensor(changed), Ranks())
    assert half.item() == whole.item()


def test_agreement_is_least_where_both_sides_agree() -> None:
    sure = torch.tensor([8.0])
    changed, unchanged = torch.tensor([-8.0]), torch.tensor([-0.0003])
    agreed = consistency.agreement(sure, changed)
    assert agreed < 0.01
    assert consistency.agreement(sure, unchanged) > 3
    assert consistency.agreement(-sure, unchanged) < 0.01
