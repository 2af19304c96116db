"""Attributes of objects are read at their places, also at the edge of the image."""

from __future__ import annotations

import torch

from cc_train.layers.pair_comparison import FactReader

WIDTH = 16


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
