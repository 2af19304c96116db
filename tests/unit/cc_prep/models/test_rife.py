"""RIFE beyond its golden vectors: sizes, batches, the large-motion rule, refinement."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cc_prep.manifest import Interpolate
from cc_prep.models.rife import RIFE, SCALES, warp
from cc_prep.steps.interpolate import RifeInterpolator


def pair(seed: int, height: int = 64, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    small = torch.rand(1, 3, 8, 12, generator=generator)
    image = torch.nn.functional.interpolate(small, (height, width + 8), mode="bicubic").clamp(0, 1)
    return image[..., :-8].contiguous(), image[..., 8:].contiguous()


@pytest.fixture(scope="module")
def network(rife_weights: dict) -> RIFE:
    return RifeInterpolator(rife_weights, Interpolate(pad_multiple=64)).network


@pytest.mark.parametrize("size", [(64, 64), (65, 97), (33, 40), (16, 130)])
@torch.inference_mode()
def test_any_size(network: RIFE, size: tuple[int, int]) -> None:
    before, after = pair(0, *size)
    middle = network(before, after)
    assert middle.shape == before.shape
    assert torch.isfinite(middle).all()


@torch.inference_mode()
def test_large_motion_is_decided_for_each_pair_alone(
    network: RIFE, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the release's rule, by which one pair changes its neighbours and later calls."""
    still = pair(1)[0]
    calm, wild = (still, still), pair(2)

    def large(ends: tuple[torch.Tensor, torch.Tensor], threshold: float) -> bool:
        monkeypatch.setattr("cc_prep.models.rife.LARGE_MOTION_PX", threshold)
        return bool(network._coarse(*ends, SCALES[:2], (64, 64))[2])

    # The second block's increments are far below 32 px on so small an image: take a threshold
    # that parts these two pairs.
    threshold = next(t / 10 for t in range(100) if large(wild, t / 10) and not large(calm, t / 10))
    monkeypatch.setattr("cc_prep.models.rife.LARGE_MOTION_PX", threshold)
    alone = [network(*calm), network(*wild)]
    together = network(torch.cat((calm[0], wild[0])), torch.cat((calm[1], wild[1])))
    assert torch.allclose(together, torch.cat(alone), atol=1e-4)
    assert torch.equal(network(*calm), alone[0])
    monkeypatch.setattr("cc_prep.models.rife.LARGE_MOTION_PX", 1e9)
    never = network(*wild)
    assert torch.equal(network(*calm), alone[0]), "the calm pair took the fast way"
    assert not torch.allclose(never, alone[1], atol=1e-3), "the wild pair took the slow way"


@pytest.mark.parametrize("multiple", [32, 96])
@torch.inference_mode()
def test_large_motion_at_any_padding(
    rife_weights: dict, monkeypatch: pytest.MonkeyPatch, multiple: int
) -> None:
    """Keeps away: doubled scales on a size that they do not divide."""
    monkeypatch.setattr("cc_prep.models.rife.LARGE_MOTION_PX", 0.0)
    network = RifeInterpolator(rife_weights, Interpolate(pad_multiple=multiple)).network
    before, after = pair(3, 96, 160)
    assert network(before, after).shape == before.shape
    assert torch.isfinite(network(before, after)).all()


def test_a_pair_does_not_depend_on_the_pairs_before(
    rife_weights: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: other bytes with another shard, or a retried reject.

    The pair before is of another size and takes the large-motion rule, of which the release keeps
    its doubled scales.
    """
    images = np.random.default_rng(0).integers(0, 256, (2, 1, 64, 64, 3), np.uint8)
    wider = np.random.default_rng(1).integers(0, 256, (2, 1, 64, 96, 3), np.uint8)
    alone = RifeInterpolator(rife_weights, Interpolate()).interpolate_batch(*images, 2)
    one = RifeInterpolator(rife_weights, Interpolate())
    with monkeypatch.context() as patched:
        patched.setattr("cc_prep.models.rife.LARGE_MOTION_PX", 0.0)
        one.interpolate_batch(*wider, 2)
    assert np.array_equal(one.interpolate_batch(*images, 2), alone)


def test_pairs_of_one_batch_differ_by_rounding_alone(rife_weights: dict) -> None:
    """Keeps away: frames of a neighbour in the batch (`interpolate.pairs_per_batch` above 1)."""
    ends = [pair(seed) for seed in (6, 7, 8)]
    before, after = (
        np.concatenate([(x[i] * 255).byte().permute(0, 2, 3, 1).numpy() for x in ends])
        for i in (0, 1)
    )
    one = RifeInterpolator(rife_weights, Interpolate())
    alone = [one.interpolate_batch(b[None], a[None], 2) for b, a in zip(before, after, strict=True)]
    off = one.interpolate_batch(before, after, 2).astype(int) - np.concatenate(alone)
    assert np.abs(off).max() <= 1


@torch.inference_mode()
def test_refinement_loads_and_stays_in_range(rife_weights: dict) -> None:
    plain = RifeInterpolator(rife_weights, Interpolate()).network
    refined = RifeInterpolator(rife_weights, Interpolate(refine=True)).network
    before, after = pair(4, 128, 128)
    difference = (refined(before, after) - plain(before, after)).abs()
    assert 0 < difference.mean() < 0.1
    assert refined(before, after).min() >= 0
    assert refined(before, after).max() <= 1


def test_half_precision_is_close(rife_weights: dict) -> None:
    before, after = (x.permute(0, 2, 3, 1).mul(255).byte().numpy() for x in pair(5))
    exact = RifeInterpolator(rife_weights, Interpolate()).interpolate_batch(before, after, 1)
    half = RifeInterpolator(rife_weights, Interpolate(precision="bfloat16")).interpolate_batch(
        before, after, 1
    )
    assert np.abs(exact.astype(int) - half).mean() < 2


def test_warp_moves_by_pixels() -> None:
    image = torch.arange(5.0).expand(1, 1, 4, 5).clone()
    flow = torch.zeros(1, 2, 4, 5)
    flow[:, 0] = 1
    assert torch.allclose(warp(image, flow)[0, 0, 0], torch.tensor([1.0, 2, 3, 4, 4]), atol=1e-5)


def test_half_precision_moves_no_pixel() -> None:
    """Keeps away: places that bfloat16 rounds, so that features are looked up beside them."""
    image = torch.arange(1024.0).expand(1, 1, 2, 1024).bfloat16()
    moved = warp(image, torch.zeros(1, 2, 2, 1024))
    assert torch.allclose(moved, image.float(), atol=1e-2)


def test_wrong_padding_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        RIFE(pad_multiple=48)
