"""The VQGAN's losses, against what the formulas say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cc_prep.models.vqgan import Config as VqganConfig
from cc_train.systems.vqgan import objective as vqgan

TINY = VqganConfig(channels=32, multipliers=(1, 1), blocks=1, latent=8, codes=16, code_width=8)


def objective(**weights: object) -> vqgan.VqganObjective:
    torch.manual_seed(0)
    values = {"discriminator_channels": 8, "discriminator_start": 0, "perceptual": 0.0, **weights}
    chosen = vqgan.Weights(backbone="none", **values)  # type: ignore[arg-type]
    return vqgan.VqganObjective(TINY, chosen, [], "cpu")


def images(count: int = 2) -> Tensor:
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Itself(nn.Module):
    """A discriminator that says what it sees."""

    def forward(self, images: Tensor) -> Tensor:
        return images


def test_the_discriminator_has_a_hinge_loss_of_images_from_minus_1_to_1() -> None:
    """Keeps away: real images in another range than generated ones: that alone tells them apart."""
    task = objective()
    task.discriminator = Itself()  # type: ignore[assignment]
    task.rebuilt = torch.linspace(-2, 2, 24).view(2, 3, 2, 2)
    real = 2 * images() - 1
    expected = ((1 - real).clamp(min=0).mean() + (1 + task.rebuilt).clamp(min=0).mean()) / 2
    losses = task.losses("discriminator", images(), 0, {})
    assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, field in vqgan.Weights.model_fields.items()
        if field.annotation in (int, float) and not name.startswith("discriminator_")
    ],
)
def test_no_weight_is_below_0(name: str) -> None:
    assert getattr(vqgan.Weights(**{name: 0}), name) == 0  # type: ignore[arg-type]
    for value in (-1, -0.5):
        with pytest.raises(ValueError, match=name):
            vqgan.Weights(**{name: value})  # type: ignore[arg-type]


def test_the_generators_total_is_weighed() -> None:
    task = objective(pixel=2.0, codebook=3.0, adversarial=0.5, revive_every=0)
    losses = task.losses("generator", images(), 1, {})
    adversarial = 0.5 * losses["adaptive"] * losses["adversarial"]
    expected = 2 * losses["pixel"] + 3 * losses["codebook"] + adversarial
    assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-4)
    assert task.rebuilt is not None
    pixel = (task.rebuilt - (2 * images() - 1)).abs().mean()
    assert losses["pixel"].item() == pytest.approx(pixel.item(), rel=1e-4)
    with torch.no_grad():
        fooled = -task.discriminator(task.rebuilt).mean()
    assert losses["adversarial"].item() == pytest.approx(fooled.item(), rel=1e-3)


def test_the_squared_error_is_added_where_it_has_a_weight() -> None:
    """Keeps away: a weight that is read and has no effect."""
    task = task_without_perceptual(squared=4.0, adversarial=0.0, revive_every=0)
    losses = task.losses("generator", images(), 1, {})
    assert task.rebuilt is not None
    squared = (task.rebuilt - (2 * images() - 1)).square().mean()
    assert losses["squared"].item() == pytest.approx(squared.item(), rel=1e-4)
    expected = losses["pixel"] + 4 * squared + losses["codebook"]
    assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-4)
    plain = task_without_perceptual(adversarial=0.0).losses("generator", images(), 1, {})
    assert "squared" not in plain


def test_the_perceptual_distance_sees_images_from_0_to_1() -> None:
    task = objective(perceptual=0.5, adversarial=0.0, revive_every=0)
    seen = []

    def distance(one: Tensor, other: Tensor) -> Tensor:
        seen.append((one.detach(), other))
        return (one - other).abs().mean()

    task.distance = distance  # type: ignore[assignment]
    losses = task.losses("generator", images(), 1, {})
    assert task.rebuilt is not None
    [(one, other)] = seen
    assert torch.equal(one, (task.rebuilt + 1) / 2)
    assert torch.equal(other, images())
    expected = losses["pixel"] + 0.5 * losses["perceptual"] + losses["codebook"]
    assert losses["total"].item() == pytest.approx(expected.item(), rel=1e-4)


def test_codes_start_from_features_only_where_codes_are_revived() -> None:
    for every, moved in ((0, False), (5, True)):
        task = objective(revive_every=every)
        before = task.network.quantize.embedding.weight.detach().clone()
        task.losses("generator", images(), 0, {})
        assert torch.equal(before, task.network.quantize.embedding.weight) is not moved
        after = task.network.quantize.embedding.weight.detach().clone()
        task.losses("generator", images(), 1, {})
        assert torch.equal(after, task.network.quantize.embedding.weight)


def test_revival_comes_at_its_steps_alone() -> None:
    """Keeps away: codes that move one step late, or a usage that is never forgotten."""
    task = objective(revive_every=3, revive_until=7)
    moves = []
    for step in range(10):
        task.losses("generator", images(), step, {})
        table = task.network.quantize.embedding.weight
        task.usage[0], task.usage[1:] = 0, 1
        table.data[0] = 1000.0
        task.after_step(step)
        if table.data[0].max() < 1000:
            moves.append(step)
            assert not task.usage.any()
    assert moves == [3, 6]


class Worse(nn.Module):
    """Gives images back, each value lower by an error."""

    class config:  # noqa: N801
        codes, factor = 8, 1

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def features(self, images: Tensor) -> Tensor:
        return images

    def indices(self, features: Tensor) -> Tensor:
        self.seen = features
        return torch.zeros(len(features), 2, 2, dtype=torch.int64)

    def vectors(self, indices: Tensor) -> Tensor:
        return self.seen

    def decode(self, vectors: Tensor) -> Tensor:
        return vectors - self.error


def test_measures_of_a_known_error() -> None:
    batches = [images(2), images(3)]
    measures, picture = vqgan.measure(Worse(0.1), batches, "cpu")  # type: ignore[arg-type]
    assert measures["psnr"] == pytest.approx(20, abs=1e-3)
    assert measures["absolute"] == pytest.approx(0.1, abs=1e-5)
    assert measures["used"] == pytest.approx(1 / 8)
    assert measures["perplexity"] == pytest.approx(1)
    assert picture is not None
    assert picture.shape == (32, 32, 3), "the first image of each batch above its reconstruction"
    exact, _ = vqgan.measure(Worse(0.0), batches, "cpu")  # type: ignore[arg-type]
    assert exact["psnr"] == pytest.approx(100), "of no error at all, 100 dB and not infinity"


def test_a_picture_shows_as_many_images_as_fit() -> None:
    many = [images(1) for _ in range(vqgan.SHOWN + 2)]
    _, picture = vqgan.measure(Worse(0.0), many, "cpu")  # type: ignore[arg-type]
    assert vqgan.SHOWN == 8
    assert picture is not None
    assert picture.shape == (32, 8 * 16, 3)
    other = [images(1), torch.rand(1, 3, 8, 8), images(1)]
    _, picture = vqgan.measure(Worse(0.0), other, "cpu")  # type: ignore[arg-type]
    assert picture is not None
    assert picture.shape == (32, 32, 3), "images of another size are left out"


def test_a_grid_has_the_images_own_values() -> None:
    values = torch.tensor([0.0, 0.2, 1.0])[:, None, None].expand(3, 4, 5)
    grid = vqgan.grid(values[None], values[None] + 0.4)
    assert grid.dtype == np.uint8
    assert grid.shape == (8, 5, 3)
    assert grid[0, 0].tolist() == [0, 51, 255]
    assert grid[4, 0].tolist() == [102, 153, 255], "what is too bright is cut"


def test_the_adaptive_weight_is_bounded() -> None:
    """Keeps away: a weight of infinity where the discriminator's gradient vanishes."""
    task = objective()
    last = task.network.decoder.conv_out.weight
    rebuilt = (last * 1e9).sum()
    weight = task._adaptive(rebuilt, (last * 0).sum())
    assert weight.item() == vqgan.MAX_ADVERSARIAL == 1e4
    one, other = (last * 3).sum(), (last * 2).sum()
    assert task._adaptive(one, other).item() == pytest.approx(1.5, rel=1e-3)
    assert not math.isnan(task._adaptive(one * 0, other * 0).item())


def task_without_perceptual(**weights: object) -> vqgan.VqganObjective:
    torch.manual_seed(0)
    values = {"backbone": "none", "discriminator_channels": 8, "discriminator_start": 0, **weights}
    # A perceptual weight of 0: these tests are about the rest.
    chosen = vqgan.Weights(perceptual=0.0, **values)  # type: ignore[arg-type]
    images = torch.rand(2, 3, 16, 16)
    return vqgan.VqganObjective(TINY, chosen, [images], "cpu")


def seeded_images(seed: int = 0, count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 16, 16, generator=generator)


class Seen(nn.Module):
    """A distance that remembers in which precision it was asked."""

    def forward(self, images: Tensor, others: Tensor) -> Tensor:
        self.precisions = {images.dtype, others.dtype}
        self.autocast = torch.is_autocast_enabled("cpu")
        return (images - others).square().mean()


def test_the_perceptual_network_runs_in_float32() -> None:
    """Keeps away: a loss in bfloat16 that the validation measures in float32."""
    task, seen = task_without_perceptual(), Seen()
    task.distance = seen
    with torch.autocast("cpu", torch.bfloat16):
        task.losses("generator", seeded_images(), 1, {})
    assert seen.precisions == {torch.float32}
    assert not seen.autocast


@pytest.mark.parametrize("legacy", [True, False])
def test_beta_stands_at_the_term_that_the_reference_puts_it_at(legacy: bool) -> None:
    task = task_without_perceptual(legacy=legacy, beta=0.25, revive_every=0)
    losses = task.losses("generator", seeded_images(), 1, {})
    network = task.network
    with torch.no_grad():
        vectors = network.quant_conv(network.features(seeded_images()))
        indices = network.quantize.nearest(vectors)
        codes = network.quantize.embedding(indices).permute(0, 3, 1, 2)
    # Both terms have the same value; β decides whose gradient is small.
    assert losses["codebook"].item() == pytest.approx(
        1.25 * (codes - vectors).square().mean().item(), rel=1e-4
    )
    table = network.quantize.embedding.weight
    [moved] = torch.autograd.grad(losses["codebook"], table)
    used = torch.unique(indices)
    full = 2 * (codes - vectors).sum().item() / codes.numel()
    share = 0.25 if legacy else 1.0
    assert moved[used].sum().item() == pytest.approx(share * full, rel=1e-3)


def test_the_gradient_passes_the_codebook() -> None:
    task = task_without_perceptual(revive_every=0)
    losses = task.losses("generator", seeded_images(), 1, {})
    [gradient] = torch.autograd.grad(losses["pixel"], task.network.encoder.conv_in.weight)
    assert gradient.abs().sum() > 0


def test_the_discriminator_waits_for_its_step() -> None:
    task = task_without_perceptual(discriminator_start=5)
    assert "adversarial" not in task.losses("generator", seeded_images(), 4, {})
    assert task.losses("discriminator", seeded_images(), 4, {})["total"].item() == 0
    assert "adversarial" in task.losses("generator", seeded_images(), 5, {})
    assert task.losses("discriminator", seeded_images(), 5, {})["total"].item() > 0


def test_the_adversarial_weight_levels_the_gradients() -> None:
    task = task_without_perceptual()
    losses = task.losses("generator", seeded_images(), 0, {})
    last = task.network.decoder.conv_out.weight
    rebuilt, fooled = (
        torch.autograd.grad(losses[name], last, retain_graph=True)[0].norm()
        for name in ("pixel", "adversarial")
    )
    assert losses["adaptive"].item() == pytest.approx((rebuilt / fooled).item(), rel=0.05)


def test_dead_codes_are_revived() -> None:
    task = task_without_perceptual(revive_every=3, revive_until=10)
    task.losses("generator", seeded_images(), 0, {})
    table = task.network.quantize.embedding.weight
    table.data[8:] = 1000.0  # where no feature ever comes
    for step in range(1, 7):
        task.losses("generator", seeded_images(step), step, {})
        task.after_step(step)
    assert table.data.abs().max() < 1000
    table.data[8:] = 1000.0
    for step in range(10, 16):  # after `revive_until` none is moved
        task.losses("generator", seeded_images(step), step, {})
        task.after_step(step)
    assert (table.data[8:] == 1000).all()


def test_measure_of_a_perfect_network() -> None:
    class Perfect(nn.Module):
        class config:  # noqa: N801
            codes, factor = 4, 1

        def features(self, images: Tensor) -> Tensor:
            return images

        def indices(self, features: Tensor) -> Tensor:
            self.seen = features
            return torch.tensor([[[0, 1], [2, 2]]])

        def vectors(self, indices: Tensor) -> Tensor:
            return self.seen

        def decode(self, vectors: Tensor) -> Tensor:
            return vectors

    measures, picture = vqgan.measure(Perfect(), [seeded_images(count=1)], "cpu")  # type: ignore[arg-type]
    assert measures["psnr"] == 100
    assert measures["used"] == 0.75
    assert measures["perplexity"] == pytest.approx(2**1.5)
    assert picture is not None
    assert picture.shape == (32, 16, 3)
