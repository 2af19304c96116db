"""Features on the tokens' grid: all values of a place, and nothing of its neighbours."""

from __future__ import annotations

import pytest
import torch

from cc_prep.errors import UserError
from cc_train.layers.feature_grid import Standardise, fold, to_grid

FEATURES = torch.arange(2 * 3 * 4 * 6, dtype=torch.float32).view(2, 3, 4, 6)


def test_a_token_holds_all_values_of_its_place() -> None:
    """Keeps away: places or channels that are mixed up, or lost."""
    folded = to_grid(FEATURES, (2, 3), "unshuffle")
    assert folded.shape == (2, 12, 2, 3)
    for row in range(2):
        for column in range(3):
            part = FEATURES[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(folded[:, :, row, column], part.flatten(1))


def test_a_mean_is_that_of_its_place() -> None:
    pooled = to_grid(FEATURES, (2, 3), "mean")
    assert pooled.shape == (2, 3, 2, 3)
    assert torch.equal(pooled[:, :, 1, 2], FEATURES[:, :, 2:, 4:].mean((2, 3)))


@pytest.mark.parametrize("pooling", ["unshuffle", "mean"])
def test_the_same_grid_stays(pooling: str) -> None:
    assert torch.equal(to_grid(FEATURES, (4, 6), pooling), FEATURES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fine", "coarse"), [((14, 14), (5, 5)), ((7, 7), (14, 14)), ((4, 8), (4, 4)), ((9, 8), (4, 4))]
)
def test_other_sizes_are_refused(fine: tuple[int, int], coarse: tuple[int, int]) -> None:
    sizes = f"{fine[0]} × {fine[1]} are no whole multiple of the {coarse[0]} × {coarse[1]} tokens"
    with pytest.raises(UserError, match=sizes):
        fold(fine, coarse)
    assert fold((14, 21), (2, 3)) == 7


def test_channels_are_standardised_and_their_statistics_are_kept() -> None:
    x = 3 * torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0)) + torch.arange(4)
    first, second = Standardise(4), Standardise(4)
    assert torch.equal(first(x), x)
    first.set(x.mean((0, 1)).double(), x.std((0, 1), correction=0).double())
    second.load_state_dict(first.state_dict())
    assert torch.allclose(second(x).mean((0, 1)), torch.zeros(4), atol=1e-6)
    assert torch.allclose(second(x).std((0, 1), correction=0), torch.ones(4), atol=1e-6)
    assert not list(second.parameters()), "training leaves them as they are"
