"""What weight decay falls on, in every optimiser that a training builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.models.clip4idc import Config as ClipConfig
from cc_prep.models.vqgan import Config as VqganConfig
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.vqgan.objective import VqganObjective, Weights
from cc_train.training import optim
from cc_train.training.settings import Loop
from cc_train.training.trainer import Trainer

TINY = VqganConfig(channels=32, multipliers=(1, 1), blocks=1, latent=8, codes=16, code_width=8)
ENCODER = Config(width=64, layers=1, latent=8, codes=16, frames=3, rows=2, columns=2, text_length=4)
CLIP = ClipConfig(
    embedding=16, resolution=32, patch=16, vision_width=64, vision_layers=2, intra_layers=1,
    text_width=64, text_layers=1,
)  # fmt: skip


def decayed(groups: list[dict[str, Any]], network: nn.Module) -> set[str]:
    """Names of the parameters that decay."""
    names = {id(p): name for name, p in network.named_parameters()}
    decaying = [group for group in groups if group["weight_decay"] > 0]
    return {names[id(p)] for group in decaying for p in group["params"]}


def objective(weight_decay: float = 0.0) -> VqganObjective:
    weights = Weights(
        backbone="none", perceptual=0.0, discriminator_channels=8, discriminator_start=2
    )
    return VqganObjective(TINY, weights, [], "cpu", weight_decay)


@pytest.mark.parametrize("kind", ["adamw", "bert_adam"])
def test_a_group_that_names_no_decay_has_none(kind: optim.Optimizer) -> None:
    """Keeps away: the 0.01 of AdamW's default, which no settings file shows."""
    weight = nn.Parameter(torch.ones(2, 2))
    optimiser = optim.build_optimizer([{"params": [weight]}], 0.1, (0.9, 0.999), kind)
    weight.grad = torch.zeros(2, 2)
    optimiser.step()
    assert torch.equal(weight, torch.ones(2, 2))


@pytest.mark.parametrize("phase", ["generator", "discriminator"])
def test_a_vqgan_decays_as_its_settings_say(phase: str) -> None:
    for weight_decay in (0.0, 0.25):
        task = objective(weight_decay)
        network = task.network if phase == "generator" else task.discriminator
        optimiser = optim.build_optimizer(task.groups(phase), 0.1, (0.9, 0.999))
        assert {g["weight_decay"] for g in optimiser.param_groups} == {0.0, weight_decay}
        own = decayed(optimiser.param_groups, network)
        filters = {name for name, p in network.named_parameters() if p.ndim == 4}
        assert own == (filters if weight_decay else set())


def test_what_embeds_does_not_decay() -> None:
    """Keeps away: positions with five dimensions, or in no nn.Embedding, taken for filters."""
    encoder, clip = ProcedureEncoder(ENCODER), CLIP4IDC(CLIP)
    for network, spared in (
        (encoder, ("target_pos_emb.", "text_pos_emb.", "text_emb.", "special_emb.")),
        (clip, ("positional_embedding", "token_embedding", "text_projection", "visual.proj")),
    ):
        own = decayed(optim.param_groups([network], 0.1), network)
        assert not [name for name in own if any(part in name for part in spared)]
        assert all(name in own for name, _ in network.named_parameters() if "in_proj_we" in name)
    assert "conv_to_embedding.1.weight" in decayed(optim.param_groups([encoder], 0.1), encoder)


def test_a_discriminator_that_waits_is_left_alone(tmp_path: Path) -> None:
    """Keeps away: one that decays, and whose step counter runs, before its first loss."""
    settings = Loop(steps=4, batch_size=2, weight_decay=0.25, warmup_steps=0, device="cpu")
    task = objective(settings.weight_decay)
    trainer = Trainer(task, settings, {}, tmp_path)
    start = {name: p.detach().clone() for name, p in task.discriminator.named_parameters()}
    for step in range(3):
        trainer.step([torch.rand(2, 3, 16, 16)], step)
        same = [torch.equal(p, start[name]) for name, p in task.discriminator.named_parameters()]
        assert all(same) == (step < 2)


def test_schedule() -> None:
    rates = [optim.lr_multiplier(s, 100, 10, 0.1) for s in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[9] == rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_the_running_average_soon_forgets_the_start() -> None:
    """After n steps it is over some n / 9 of them, until `decay` is over more."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    averaged = AveragedModel(network, multi_avg_fn=optim.running_average(0.99))
    averaged.update_parameters(network)  # the first one is taken as it is
    expected = 0.0
    for step in range(1, 2000):
        nn.init.constant_(network.weight, float(step))
        averaged.update_parameters(network)
        decay = min(0.99, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        if step == 50:
            assert expected > 40, "0.99 from the start on would have 10"
    assert averaged.module.weight.item() == pytest.approx(expected, rel=1e-4)
    assert 1899 < expected < 1901, "the last 100 steps"


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_bert_adam_at_once_is_bert_adam_one_by_one(clip: float) -> None:
    """Keeps away: a GPU, which takes the first way, that trains otherwise than a processor."""
    torch.manual_seed(0)
    gradients = [torch.randn(3, 4) * 5, torch.randn(7) * 0.01]
    results = []
    for together in (False, True):
        weights = [nn.Parameter(torch.linspace(-1, 1, g.numel()).view(g.shape)) for g in gradients]
        optimiser = optim.BertAdam(weights, lr=0.1, weight_decay=0.5, clip=clip)
        for number in range(3):
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient / (number + 1)
            if together and number:  # the first step makes the state
                optimiser.together(optimiser.param_groups[0], weights)
            else:
                optimiser.step()
        results.append(weights)
    for one_by_one, at_once in zip(*results, strict=True):
        torch.testing.assert_close(at_once, one_by_one, rtol=1e-5, atol=1e-6)


def test_adamw_is_that_of_torch() -> None:
    """Keeps away: an optimiser without torch's wrappers that takes another step, or keeps a
    graph of it."""
    parameters = [[torch.nn.Parameter(torch.tensor([1.0, -2.0]))] for _ in range(2)]
    ours = optim.build_optimizer([{"params": parameters[0], "weight_decay": 0.1}], 0.1, (0.9, 0.99))
    theirs = torch.optim.AdamW(parameters[1], lr=0.1, betas=(0.9, 0.99), weight_decay=0.1)
    for _ in range(3):
        for [parameter], optimiser in zip(parameters, (ours, theirs), strict=True):
            optimiser.zero_grad()
            parameter.square().sum().backward()
            optimiser.step()
        ours.load_state_dict(ours.state_dict())
    assert torch.allclose(parameters[0][0], parameters[1][0], rtol=1e-6)
    assert parameters[0][0].grad_fn is None
