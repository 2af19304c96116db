"""Objectives and what they rest on: losses, revival, retrieval, schedules, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cc_prep.errors import JobFailed, UserError
from cc_prep.models.clip4idc import CLIP4IDC, Config
from cc_train.systems.clip4idc import objective as clip4idc
from cc_train.systems.vqgan import objective as vqgan
from cc_train.training import checkpoints, loop, optim
from cc_train.training.loop import Loop, Trainer

TINY = vqgan.Network(multipliers=(1, 1), blocks=1, latent=8, codes=16, code_width=8)
TINY_CLIP = clip4idc.Network(
    embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
    text_width=64, text_layers=1,
)  # fmt: skip


def objective(**weights: object) -> vqgan.VqganObjective:
    torch.manual_seed(0)
    values = {"backbone": "none", "discriminator_channels": 8, "discriminator_start": 0, **weights}
    # A perceptual weight of 0: these tests are about the rest.
    chosen = vqgan.Weights(perceptual=0.0, **values)  # type: ignore[arg-type]
    images = torch.rand(2, 3, 16, 16)
    return vqgan.VqganObjective(TINY, chosen, [images], "cpu")


def images(seed: int = 0, count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 16, 16, generator=generator)


@pytest.mark.parametrize("legacy", [True, False])
def test_beta_stands_at_the_term_that_the_reference_puts_it_at(legacy: bool) -> None:
    task = objective(legacy=legacy, beta=0.25, revive_every=0)
    losses = task.losses("generator", images(), 1, {})
    network = task.network
    with torch.no_grad():
        vectors = network.quant_conv(network.features(images()))
        codes = network.quantize.embedding(network.indices(images())).permute(0, 3, 1, 2)
    # Both terms have the same value; β decides whose gradient is small.
    assert losses["codebook"].item() == pytest.approx(
        1.25 * (codes - vectors).square().mean().item(), rel=1e-4
    )
    table = network.quantize.embedding.weight
    [moved] = torch.autograd.grad(losses["codebook"], table)
    used = torch.unique(network.indices(images()))
    full = 2 * (codes - vectors).sum().item() / codes.numel()
    share = 0.25 if legacy else 1.0
    assert moved[used].sum().item() == pytest.approx(share * full, rel=1e-3)


def test_the_gradient_passes_the_codebook() -> None:
    task = objective(revive_every=0)
    losses = task.losses("generator", images(), 1, {})
    [gradient] = torch.autograd.grad(losses["pixel"], task.network.encoder.conv_in.weight)
    assert gradient.abs().sum() > 0


def test_the_discriminator_waits_for_its_step() -> None:
    task = objective(discriminator_start=5)
    assert "adversarial" not in task.losses("generator", images(), 4, {})
    assert task.losses("discriminator", images(), 4, {})["total"].item() == 0
    assert "adversarial" in task.losses("generator", images(), 5, {})
    assert task.losses("discriminator", images(), 5, {})["total"].item() > 0


def test_the_adversarial_weight_levels_the_gradients() -> None:
    task = objective()
    losses = task.losses("generator", images(), 0, {})
    last = task.network.decoder.conv_out.weight
    rebuilt, fooled = (
        torch.autograd.grad(losses[name], last, retain_graph=True)[0].norm()
        for name in ("pixel", "adversarial")
    )
    assert losses["adaptive"].item() == pytest.approx((rebuilt / fooled).item(), rel=0.05)


def test_dead_codes_are_revived() -> None:
    task = objective(revive_every=3, revive_until=10)
    task.losses("generator", images(), 0, {})
    table = task.network.quantize.embedding.weight
    table.data[8:] = 1000.0  # where no feature ever comes
    for step in range(1, 7):
        task.losses("generator", images(step), step, {})
        task.after_step(step)
    assert table.data.abs().max() < 1000
    table.data[8:] = 1000.0
    for step in range(10, 16):  # after `revive_until` none is moved
        task.losses("generator", images(step), step, {})
        task.after_step(step)
    assert (table.data[8:] == 1000).all()


def test_measure_of_a_perfect_network() -> None:
    class Perfect(nn.Module):
        class config:  # noqa: N801
            codes = 4

        def indices(self, images: Tensor) -> Tensor:
            self.seen = images
            return torch.tensor([[[0, 1], [2, 2]]])

        def decode(self, indices: Tensor) -> Tensor:
            return self.seen

    measures, picture = vqgan.measure(Perfect(), [images(count=1)], "cpu")  # type: ignore[arg-type]
    assert measures["psnr"] == 100
    assert measures["used"] == 0.75
    assert measures["perplexity"] == pytest.approx(2**1.5)
    assert picture is not None
    assert picture.shape == (32, 16, 3)


def test_training_lowers_the_loss() -> None:
    task = objective(adversarial=0.0)
    settings = Loop(steps=40, learning_rate=2e-3, warmup_steps=0, device="cpu")
    trainer = Trainer(task, settings, {}, Path("unused"))
    losses = [trainer.step([images()], step)["pixel"] for step in range(40)]
    assert losses[-1] < 0.7 * losses[0]


def test_no_number_stops_the_run() -> None:
    task = objective(adversarial=0.0)
    trainer = Trainer(task, Loop(device="cpu"), {}, Path("unused"))
    before = task.network.decoder.conv_out.weight.clone()
    with pytest.raises(JobFailed, match="step 0"):
        trainer.step([images() * math.nan], 0)
    assert torch.equal(before, task.network.decoder.conv_out.weight)


def test_from_clip_starts_from_copies() -> None:
    sizes = Config(
        embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
        vocabulary=100, context=32, text_width=64, text_layers=1,
    )  # fmt: skip
    plain = CLIP4IDC(sizes).state_dict()
    new = [name for name in plain if any(part in name for part in clip4idc.NEW)]
    assert len(new) == 5
    for name in new:
        del plain[name]
    tensors = clip4idc.from_clip(plain, 1).state_dict()
    places = plain["visual.positional_embedding"]
    assert torch.equal(tensors["visual.joint_positional_embedding"], torch.cat((places, places)))
    assert torch.equal(tensors["visual.bef_embedding"], plain["visual.class_embedding"])
    assert torch.equal(tensors["visual.ln_mid.bias"], plain["visual.ln_pre.bias"])
    with pytest.raises(UserError, match="no CLIP weights"):
        clip4idc.from_clip({"a": torch.zeros(1)}, 1)


def test_what_came_from_clip_learns_slowly() -> None:
    network = clip4idc.from_scratch(TINY_CLIP)
    task = clip4idc.Clip4idcObjective(network, [], 0.1, 1e-3, "cpu")
    optimiser = optim.build_optimizer(task.groups("model"), 1.0, (0.9, 0.99))
    rates = {id(p): g["base"] for g in optimiser.param_groups for p in g["params"]}
    assert len(rates) == len(list(network.parameters()))
    for name, parameter in network.named_parameters():
        fresh = any(part in name for part in clip4idc.NEW)
        assert rates[id(parameter)] == (1.0 if fresh else 1e-3), name


def test_retrieval_of_a_known_order() -> None:
    """Four pairs, the third found at rank 2 by its sentence; two with the same sentence."""

    class Known(nn.Module):
        visual = None

        def similarity(self, text: Tensor, pairs: Tensor) -> Tensor:
            return torch.tensor([[9.0, 1, 0, 0], [1, 9, 0, 0], [5, 0, 4, 0], [0, 0, 9, 1]])

    batch = {"captions": ["a", "b", "c", "c"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip4idc, "embed", lambda n, b: (torch.zeros(4, 1), torch.zeros(4, 1)))
        measures = clip4idc.retrieval(Known(), [batch], "cpu")  # type: ignore[arg-type]
    # Row 3 is right: the pair it finds has the same sentence. Row 2 finds pair 0 first.
    assert measures["text_r1"] == 75
    assert measures["text_r5"] == 100
    assert measures["chance_r1"] == 25
    assert 0 < measures["recall"] <= 100


def test_schedule() -> None:
    rates = [optim.lr_multiplier(s, 100, 10, 0.1) for s in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_checkpoints_come_back_and_old_ones_go(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.int64)}
    for step in range(1, 6):
        checkpoints.write(tmp_path, step, tensors, {"x": 1}, tensors, {"best": {}})
    checkpoints.prune(tmp_path, 2, best=3)
    assert checkpoints.steps(tmp_path) == [3, 4, 5]
    checkpoint = checkpoints.read(tmp_path, 4)
    assert checkpoint.step == 4
    assert torch.equal(checkpoint.training["a"], tensors["a"])
    assert not list(tmp_path.glob("checkpoints/.*"))
    file = tmp_path / "checkpoints/000005" / checkpoints.MODEL
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="damaged"):
        checkpoints.read(tmp_path, 5)
    (tmp_path / "checkpoints/000004/state.json").write_text("{")
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoints.read(tmp_path, 4)


class Torn:
    """A loader that gives one item and then fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __iter__(self) -> Iterator[int]:
        yield 1
        raise self.error


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset"), EOFError(), FileNotFoundError(2, "")]
)
def test_a_worker_that_dies_while_it_hands_an_item_over(error: Exception) -> None:
    """Keeps away: "[Errno 104] Connection reset by peer" as all that is said of it."""
    items = loop._handed_over(Torn(error), workers=2)
    assert next(items) == 1
    with pytest.raises(JobFailed, match="a loader worker died"):
        next(items)


@pytest.mark.parametrize(
    ("workers", "message"), [(0, ""), (2, "Caught X in DataLoader worker process 0.\nOriginal")]
)
def test_what_a_store_says_stays_what_it_said(workers: int, message: str) -> None:
    error = ConnectionResetError(message)
    with pytest.raises(ConnectionResetError) as caught:
        list(loop._handed_over(Torn(error), workers))
    assert caught.value is error


def test_only_a_death_is_called_one() -> None:
    """Keeps away: a worker's own error, its traceback lost, called out of memory."""
    killed = "DataLoader worker (pid 12) is killed by signal: Killed. "
    with pytest.raises(JobFailed, match="a loader worker died"), loop._alive():
        raise RuntimeError(killed)
    own = "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback"
    with pytest.raises(RuntimeError, match="Original"), loop._alive():
        raise RuntimeError(own)
