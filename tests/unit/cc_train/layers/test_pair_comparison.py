"""Attributes of objects are read at their places, also at the edge of the image."""

from __future__ import annotations

import torch

from cc_train.data.supervision import FactVocabulary
from cc_train.layers.pair_comparison import Comparison, FactReader
from cc_train.training import fact_losses

WIDTH = 16


def test_data_in_which_nothing_gets_a_new_value_are_learned() -> None:
    """Keeps away: an error of torch for composed pairs where things only appear and disappear."""
    torch.manual_seed(0)
    vocabulary = FactVocabulary(("none", "add", "drop"), {"class": ("a", "b")}, ())
    comparison = Comparison(WIDTH, (4, 4), 2, vocabulary=vocabulary)
    changes = comparison(*torch.randn(2, 3, WIDTH, 4, 4))
    assert changes.facts.shape == (3, 5)
    facts = torch.tensor([[0, -1], [1, 0], [2, 1]])
    counts = dict.fromkeys(vocabulary.fact_names, torch.tensor(3))
    losses = fact_losses.of_change(changes.facts, facts, counts, vocabulary)
    weights = fact_losses.FactLosses(type=1.0, attributes=2.0)
    total = weights.of_change(losses, vocabulary)
    torch.testing.assert_close(total, losses["type"] + 2 * losses["class"])


def test_looks_at_the_edge_are_those_of_the_nearest_place() -> None:
    torch.manual_seed(0)
    reader = FactReader(WIDTH)
    images = torch.randn(1, WIDTH, 4, 4).repeat(3, 1, 1, 1)
    # The corner itself, the centre of the place there, and a point outside the image.
    corner, centre, outside = reader.attributes_at(
        images, torch.tensor([[0.0, 0.0], [0.125, 0.125], [-0.5, -0.5]])
    )
    torch.testing.assert_close(corner, centre)
    torch.testing.assert_close(outside, centre)
    elsewhere = reader.attributes_at(images[:1], torch.tensor([[0.375, 0.125]]))[0]
    assert (elsewhere - centre).abs().max() > 0.01
