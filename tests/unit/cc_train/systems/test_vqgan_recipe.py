"""The VQGAN's crops."""

from __future__ import annotations

import numpy as np
import pytest

from cc_train.data import order
from cc_train.systems.vqgan import recipe as vqgan

RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("size", [(64, 64), (20, 90), (32, 32), (33, 31)])
def test_crops_fit(size: tuple[int, int]) -> None:
    data = vqgan.Data(crop=32)
    image = RANDOM.integers(0, 256, (*size, 3), np.uint8)
    for place in range(20):
        assert vqgan._crop(image, data, order.rng_of(0, 0, place)).shape == (32, 32, 3)
