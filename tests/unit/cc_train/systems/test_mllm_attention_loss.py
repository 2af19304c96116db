"""Masks on a grid, and the forms of the loss between them and attention."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from cc_train.systems.mllm import attention_loss
from cc_train.systems.mllm.attention_tap import Rows
from tests.conftest import ROOT

GOLDEN: dict[str, Any] = json.loads((ROOT / "tests/golden/mllm/attention.json").read_text())
FORMS = {
    "literal": "literal__softmax_of_probabilities__attention_to_mask",
    "logits": "logits__softmax_of_mean_scores__attention_to_mask",
    "attention_to_mask": "renormalised__attention_to_mask",
    "mask_to_attention": "renormalised__mask_to_attention",
    "mse": "mse_of_normalised",
    "cross_entropy": "cross_entropy_mask_to_attention",
}


def test_masks_are_pooled_by_area_and_blurred_as_computed_by_hand() -> None:
    """Keeps away: a mask that lies a patch beside what it marks, or a blur of another border."""
    pooled = attention_loss.pooled(np.array(GOLDEN["mask_8x8"]), (4, 4))
    np.testing.assert_allclose(pooled, GOLDEN["pooled_4x4"], atol=1e-6)
    blurred = attention_loss.blurred(pooled, 3)
    np.testing.assert_allclose(blurred, GOLDEN["blurred_sigma1_size3_reflect"], atol=1e-6)


def test_a_box_in_an_image_of_224_px() -> None:
    """Keeps away: partly covered patches that count as whole ones."""
    box = GOLDEN["box_224"]
    mask = np.zeros((224, 224), np.uint8)
    mask[box["y0"] : box["y1"], box["x0"] : box["x1"]] = 1
    pooled = attention_loss.pooled(mask, (16, 16))
    expected = np.zeros((16, 16))
    for row, column, value in box["pooled_nonzero"]:
        expected[row, column] = value
    np.testing.assert_allclose(pooled, expected, atol=1e-6)
    soft = attention_loss.soft_mask(mask, (16, 16))
    assert soft.sum() == pytest.approx(box["blur_sigma1_size5_sum"], abs=1e-5)
    assert soft.max() == pytest.approx(box["blur_max"], abs=1e-6)
    assert list(np.unravel_index(soft.argmax(), soft.shape)) == box["blur_argmax"]


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(2, 17), st.integers(2, 17), st.integers(0)
)
def test_pooling_keeps_the_marked_share(
    height: int, width: int, rows: int, columns: int, seed: int
) -> None:
    """Keeps away: pixels lost or counted twice where a grid does not divide the image."""
    mask = np.random.default_rng(seed).integers(0, 2, (height, width))
    pooled = attention_loss.pooled(mask, (rows, columns))
    assert pooled.mean() == pytest.approx(mask.mean(), abs=1e-9)
    assert pooled.min() >= 0
    assert pooled.max() <= 1 + 1e-9
    assert attention_loss.blurred(pooled).shape == (rows, columns)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_loss_are_as_computed_by_hand(form: Any) -> None:
    """Keeps away: a divergence in the wrong direction, or of what was not normalised."""
    known = GOLDEN["kl"]
    scores = torch.tensor(known["scores_2_heads_17_keys"], dtype=torch.float64)
    rows = Rows(scores.softmax(-1).mean(0)[None, 1:], scores.mean(0)[None, 1:])
    mask = torch.tensor(known["soft_mask"], dtype=torch.float64)[None]
    loss = attention_loss.control(rows, mask, form)
    assert loss.item() == pytest.approx(known[FORMS[form]], abs=1e-6)


def test_the_literal_form_has_next_to_no_gradient() -> None:
    """Keeps away: the paper's formula as the default, by which nothing is learned (256 places)."""
    mask = np.zeros((224, 224), np.uint8)
    mask[42:112, 56:126] = 1
    soft = torch.from_numpy(attention_loss.soft_mask(mask, (16, 16))).view(1, -1)
    norms = {}
    for form in ("literal", "attention_to_mask"):
        scores = 1.5 * torch.randn(1, 257, generator=torch.Generator().manual_seed(0))
        scores.requires_grad_()
        rows = Rows(scores.softmax(-1)[:, 1:], scores[:, 1:])
        attention_loss.control(rows, soft, form).sum().backward()  # type: ignore[arg-type]
        norms[form] = float(scores.grad.norm())  # type: ignore[union-attr]
    assert norms["literal"] < 1e-3 < 0.1 < norms["attention_to_mask"]


@pytest.mark.parametrize("form", ["attention_to_mask", "mask_to_attention", "mse"])
def test_attention_on_the_mask_costs_nothing(form: Any) -> None:
    """Keeps away: a loss that goes on pulling once attention is where it should be."""
    mask = torch.rand(3, 16)
    target = (mask + attention_loss.EPSILON) / (mask + attention_loss.EPSILON).sum(-1, keepdim=True)
    loss = attention_loss.control(Rows(0.7 * target, target.log()), mask, form)
    assert loss.abs().max() < 1e-6
