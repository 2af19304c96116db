"""Trainings of manifests/paper/ take the steps of ProCap's public scripts."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from cc_train import configs
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings
from cc_train.systems.procap import stage2
from cc_train.systems.procap.captioner import ProCap
from cc_train.systems.procap.stage2_objective import Stage2Objective
from cc_train.text import IGNORED, MARKS
from cc_train.training.settings import Loop
from cc_train.training.trainer import Trainer
from tests.conftest import golden
from tests.parity.test_procap_golden import captioner_of

QUIET = Console(quiet=True)
SCENES = {"clevr": 33_830, "spot": 8_566, "edit": 3_061}  # of the training splits
STEPS = 20


def of_paper(name: str) -> stage2.Settings:
    return configs.load(stage2.Settings, "stage2", f"paper/procap_{name}", [], QUIET)


@pytest.mark.parametrize("name", SCENES)
def test_the_rate_of_each_step(name: str) -> None:
    """Two processes take half of the steps that the scripts' schedule is made for."""
    loop = of_paper(name).loop.split_over(2).with_resolved_epochs(SCENES[name], 2)
    assert (loop.batch_size, loop.grad_accum_steps) == (16, 1)
    total = math.ceil(SCENES[name] / 16) * 40  # before the loader is divided
    assert loop.steps == pytest.approx(total / 2, rel=0.005), "their epochs end with a part"
    assert loop.warmup == pytest.approx(0.1 * total, rel=0.005)
    for step in range(0, loop.steps, 100):
        share = step / loop.schedule_steps
        expected = share / 0.1 if share < 0.1 else (share - 1) / (0.1 - 1)
        assert loop.lr_multiplier(step) == pytest.approx(expected, abs=5e-4)
    assert loop.lr_multiplier(loop.steps - 1) == pytest.approx(0.556, abs=1e-3)


def test_the_decoder_starts_as_torch_s_layers_do() -> None:
    torch.manual_seed(0)
    sizes = of_paper("clevr").decoder
    decoder = CaptionDecoder(80, sizes, sizes.reference_quirks)
    for name, parameter in decoder.layers.named_parameters():
        if parameter.ndim == 2:
            uniform = 1 / math.sqrt(3 * parameter.shape[1])
            assert parameter.std().item() == pytest.approx(uniform, rel=0.01), name
    torch.manual_seed(0)
    xavier = CaptionDecoder(80, DecoderSettings(width=512, heads=8, hidden=2048))
    assert xavier.layers[0].attention.layer.wq.weight.std().item() == pytest.approx(
        0.0442, rel=0.01
    )


@pytest.mark.parametrize("folder", golden("procap_stage2"), ids=lambda f: f.name)
def test_twenty_steps(folder: Path, tmp_path: Path) -> None:
    """As a second implementation, which is written as the script is: loss, clipping, update."""
    paper = of_paper("clevr")
    network, io, _ = captioner_of(folder, dropout=0.0)
    second, start = copy.deepcopy(network), copy.deepcopy(network)
    batches = batches_of(io, len(network.codec))
    loop = Loop(
        **paper.loop.model_dump(exclude={"steps", "epochs", "batch_size", "global_batch_size"}),
        steps=STEPS,
        batch_size=2,
    )
    objective = Stage2Objective(
        network,
        lambda model: {},
        label_smoothing=paper.label_smoothing,
        weight_decay=loop.weight_decay,
        device="cpu",
        encoder_lr_scale=paper.encoder_lr_scale,
        freeze=paper.freeze,
        decay_norms=paper.decay_norms,
        loss_reduction=paper.loss_reduction,
    )
    trainer = Trainer(objective, loop, {}, tmp_path / "run")
    for step, batch in enumerate(batches):
        trainer.step([batch], step)
    as_the_script(second, batches, loop.schedule_steps)
    other = dict(second.named_parameters())
    moved = 0.0
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(parameter, other[name], atol=1e-5, rtol=0, msg=name)
        moved = max(moved, float((parameter - start.get_parameter(name)).detach().abs().max()))
    assert moved > 1e-4, "the steps changed nothing"


def batches_of(io: dict[str, Tensor], words: int) -> list[dict[str, Tensor]]:
    """Batches of the golden images with captions that are drawn anew each step."""
    rng = np.random.default_rng(0)
    before_after = torch.stack((io["before"], io["after"]), dim=1)
    count, length = len(before_after), io["input_ids"].shape[1]
    batches = []
    for _ in range(STEPS):
        ids = torch.from_numpy(rng.integers(len(MARKS), words, (count, length)))
        labels = ids.roll(-1, 1)
        labels[:, int(rng.integers(3, length)) :] = IGNORED
        batches.append({"before_after": before_after, "ids": ids, "labels": labels})
    return batches


def as_the_script(network: ProCap, batches: list[dict[str, Tensor]], total: int) -> None:
    """Trains a captioner as train_stage2.py does, plainly.

    total: Steps of its schedule, of which a tenth is warm-up.
    """
    network.train()
    frozen = ("to_logits", "image_emb")
    trained = {
        name: parameter
        for name, parameter in network.named_parameters()
        if not any(part in name for part in frozen)
    }
    means = {name: torch.zeros_like(p) for name, p in trained.items()}
    squares = {name: torch.zeros_like(p) for name, p in trained.items()}
    for step, batch in enumerate(batches):
        network.zero_grad()
        with torch.no_grad():
            seen = network.features(batch["before_after"])
        memory = network.mlp(network.procedure(seen))
        logits = network.logits(batch["ids"], memory)
        summed_divergence(logits, batch["labels"], 0.1).backward()
        known = {name: p for name, p in trained.items() if p.grad is not None}
        norm = torch.stack([p.grad.norm() for p in known.values()]).norm()  # type: ignore[union-attr]
        share = step / total
        multiplier = share / 0.1 if share < 0.1 else max((share - 1) / (0.1 - 1), 0)
        for name, parameter in known.items():
            assert parameter.grad is not None
            gradient = parameter.grad * min(1.0, 1.0 / (float(norm) + 1e-6))
            gradient = gradient * min(1.0, 1.0 / (float(gradient.norm()) + 1e-6))
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.999 * squares[name] + 0.001 * gradient**2
            update = means[name] / (squares[name].sqrt() + 1e-6)
            if "bias" not in name:
                update = update + 0.01 * parameter.detach()
            rate = 2e-5 if name.startswith("intermediate_generator.") else 5e-5
            with torch.no_grad():
                parameter -= rate * multiplier * update


def summed_divergence(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    words = logits.shape[-1]
    total = logits.new_zeros(())
    for row, label in zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True):
        if label == IGNORED:
            continue
        target = torch.full((words,), smoothing / (words - 1))
        target[label] = 1 - smoothing
        total = total + nn.functional.kl_div(row.log_softmax(-1), target, reduction="sum")
    return total
