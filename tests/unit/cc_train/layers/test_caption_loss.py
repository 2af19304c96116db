"""The loss of captions: what the smoothed target is, and which words count."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cc_train.layers.caption_loss import caption_loss
from cc_train.text import IGNORED

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(2, 4, 6, generator=GENERATOR)
LABELS = torch.tensor([[3, 0, 5, IGNORED], [1, IGNORED, IGNORED, IGNORED]])


def test_without_smoothing_it_is_cross_entropy() -> None:
    expected = F.cross_entropy(
        LOGITS.flatten(0, 1), LABELS.flatten(), ignore_index=IGNORED, reduction="sum"
    )
    assert caption_loss(LOGITS, LABELS, 0.0).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_the_rest_is_spread_over_the_other_words(smoothing: float) -> None:
    """Keeps away: a target that does not sum to 1, or gives the word itself a share of the rest."""
    counted = LABELS != IGNORED
    target = torch.full((4, 6), smoothing / 5)
    target[range(4), LABELS[counted]] = 1 - smoothing
    expected = F.kl_div(LOGITS[counted].log_softmax(-1), target, reduction="sum")
    loss = caption_loss(LOGITS, LABELS, smoothing)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_a_compiled_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: places without a word that count where no row may be left out."""
    plain = caption_loss(LOGITS, LABELS, 0.1)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(caption_loss(LOGITS, LABELS, 0.1), plain)


def test_the_target_itself_has_no_loss() -> None:
    logits = torch.tensor([[[0.9, 0.02, 0.02, 0.02, 0.02, 0.02]]]).log()
    assert caption_loss(logits, torch.tensor([[0]]), 0.1).item() == pytest.approx(0, abs=1e-5)
