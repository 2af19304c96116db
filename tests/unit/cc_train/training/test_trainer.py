"""A training step: it lowers the loss, and stops where there is no number."""

from __future__ import annotations

import json
import math
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cc_prep.errors import JobFailed, UserError
from cc_prep.models import cpu
from cc_prep.models.vqgan import Config as VqganConfig
from cc_train.data.stream import StatelessSource
from cc_train.evaluation.validation import CRITERION
from cc_train.runs import run_folder
from cc_train.runs.checkpoints import Criterion, better
from cc_train.systems.vqgan import objective as vqgan
from cc_train.training.loop import Loop, Trainer
from cc_train.training.settings import compute_dtype, pick_device

TINY = VqganConfig(channels=32, multipliers=(1, 1), blocks=1, latent=8, codes=16, code_width=8)


def objective(seed: int = 0, **weights: object) -> vqgan.VqganObjective:
    torch.manual_seed(seed)
    values = {"backbone": "none", "discriminator_channels": 8, "discriminator_start": 0, **weights}
    # A perceptual weight of 0: these tests are about the rest.
    chosen = vqgan.Weights(perceptual=0.0, **values)  # type: ignore[arg-type]
    images = torch.rand(2, 3, 16, 16)
    return vqgan.VqganObjective(TINY, chosen, [images], "cpu")


def images(seed: int = 0, count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 3, 16, 16, generator=generator)


def fall_of_loss(seed: int = 0) -> float:
    """The loss after 40 steps, as a share of the first."""
    task = objective(seed, adversarial=0.0)
    settings = Loop(steps=40, learning_rate=2e-3, warmup_steps=0, device="cpu")
    trainer = Trainer(task, settings, {}, Path("unused"))
    losses = [trainer.step([images()], step)["pixel"] for step in range(40)]
    return float(losses[-1] / losses[0])


def test_training_lowers_the_loss() -> None:
    assert fall_of_loss() < 0.7


def test_no_number_stops_the_run() -> None:
    task = objective(adversarial=0.0)
    trainer = Trainer(task, Loop(device="cpu"), {}, Path("unused"))
    before = task.network.decoder.conv_out.weight.clone()
    with pytest.raises(JobFailed, match="step 0"):
        trainer.step([images() * math.nan], 0)
    assert torch.equal(before, task.network.decoder.conv_out.weight)


START = {"name": "mini", "place": "0", "sha256": "0"}


@pytest.mark.parametrize(
    ("before", "command"),
    [
        ({"init": None}, {"init": None}),
        ({"init": START}, {"init": {**START, "sha256": "1"}}),
    ],
)
def test_a_run_says_of_its_start_what_it_knows(
    tmp_path: Path, before: dict[str, Any], command: dict[str, Any]
) -> None:
    """Keeps away: a card by which a run started from what became of its start meanwhile."""
    source, settings = StatelessSource(lambda number: None), Loop(steps=2, device="cpu")
    Trainer(objective(), settings, before, tmp_path).prepare("never", source)
    Trainer(objective(), settings, before, tmp_path).save(1, source)
    goes_on = Trainer(objective(), settings, command, tmp_path)
    assert goes_on.prepare("auto", source) == 1
    assert goes_on.config == json.loads((tmp_path / "settings.json").read_text()) == before


def test_fewer_steps_than_are_done_are_refused(tmp_path: Path) -> None:
    """Keeps away: a run of 30 steps whose settings say 20, and whose command trains nothing."""
    source, settings = StatelessSource(lambda number: None), Loop(steps=3, device="cpu")
    Trainer(objective(), settings, {}, tmp_path).prepare("never", source)
    Trainer(objective(), settings, {}, tmp_path).save(2, source)
    fewer = Trainer(objective(), Loop(steps=1, device="cpu"), {}, tmp_path)
    with (
        fewer.held,
        pytest.raises(UserError, match="trained for 2 steps already, and is to end after 1"),
    ):
        fewer.prepare("auto", source)
    assert (
        Trainer(objective(), Loop(steps=2, device="cpu"), {}, tmp_path).prepare("auto", source) == 2
    )


@pytest.mark.parametrize("how", ["auto", "never"])
def test_checkpoints_without_settings_are_refused(tmp_path: Path, how: str) -> None:
    """Keeps away: a training that goes on with weights of which nothing says what they are."""
    source, settings = StatelessSource(lambda number: None), Loop(steps=3, device="cpu")
    Trainer(objective(), settings, {}, tmp_path).prepare("never", source)
    Trainer(objective(), settings, {}, tmp_path).save(2, source)
    (tmp_path / "settings.json").unlink()
    run_folder.write_files(tmp_path, {"vocabulary.json": b"[]"})
    with pytest.raises(UserError, match=r"checkpoints without settings\.json"):
        Trainer(objective(), settings, {}, tmp_path).prepare(how, source)


@pytest.mark.parametrize(
    ("precision", "device", "able", "flags", "expected"),
    [
        ("bfloat16", "cpu", True, {"avx512f", "avx512_bf16"}, torch.bfloat16),
        ("bfloat16", "cpu", True, {"amx_bf16"}, torch.bfloat16),
        ("bfloat16", "cpu", True, set(), torch.bfloat16),  # ARM
        ("bfloat16", "cpu", True, {"avx512f", "avx512_vnni"}, torch.float32),
        ("bfloat16", "cpu", False, {"avx2"}, torch.float32),
        ("bfloat16", "cuda", False, {"avx2"}, torch.bfloat16),
        ("float16", "cpu", False, {"avx2"}, torch.float16),
        ("float32", "cpu", True, {"avx512_bf16"}, torch.float32),
    ],
)
def test_bfloat16_is_not_emulated(
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    device: str,
    able: bool,
    flags: set[str],
    expected: torch.dtype,
) -> None:
    """Keeps away: a demo that takes an hour on a laptop whose processor lacks bfloat16; trainings
    that take three times as long on a server with AVX512 of which oneDNN claims that it has it."""
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: able)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: able, raising=False)
    monkeypatch.setattr(cpu, "instructions", lambda: flags)
    assert compute_dtype(precision, device) == expected


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="x86 under Linux names them"
)
def test_the_instructions_of_this_processor_are_known() -> None:
    """Keeps away: flags that are not found, after which oneDNN's answer is taken again."""
    assert "sse2" in cpu.instructions()


@pytest.mark.parametrize("tf32", [False, True])
def test_a_trainer_computes_as_tf32_says(monkeypatch: pytest.MonkeyPatch, tf32: bool) -> None:
    """Keeps away: `loop.tf32` that the trainer took back when it looked for a GPU once more."""
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        device = pick_device("auto", tf32=tf32)
        trainer = Trainer(objective(adversarial=0.0), Loop(), {}, Path("unused"), device=device)
        assert trainer.device == "cuda"
        assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert torch.backends.cudnn.allow_tf32 is tf32
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        ([(0, 0), (0, 3), (0, 2)], 2),
        ([(0, 0), (0, 0), (0, 0)], 3),
        ([(5, 9), (5, 9), (4, 9)], 2),
        ([(5, 1), (4, 9), (math.nan, 9)], 1),
        ([(5, 1), (5, math.nan)], 1),
    ],
)
def test_equal_figures_do_not_choose_the_first_checkpoint(
    monkeypatch: pytest.MonkeyPatch, figures: list[tuple[float, float]], best: int
) -> None:
    """Keeps away: small data, where CIDEr is always 0, that end with the first checkpoint."""
    task = objective(adversarial=0.0)
    trainer = Trainer(task, Loop(device="cpu"), {}, Path("unused"))
    monkeypatch.setattr(task, "criterion", CRITERION)
    for step, values in enumerate(figures, 1):
        named = dict(zip(("CIDEr", "BLEU-4"), values, strict=True))
        monkeypatch.setattr(task, "validate", lambda network, named=named: (named, None))
        trainer.validate(step)
    assert trainer.best["step"] == best


def test_the_best_one_of_a_run_from_before_ties_were_broken() -> None:
    """Keeps away: a resumed run that does not know the BLEU-4 of its best checkpoint."""
    before = {"step": 500, "CIDEr": 0.0}
    new = better(before, {"CIDEr": 0.0, "BLEU-4": 0.0}, 1000, CRITERION)
    assert new == {"step": 1000, "CIDEr": 0.0, "BLEU-4": 0.0}
    assert better(before, {"BLEU-4": 9.0}, 1000, CRITERION) == before
    assert better({"step": 1, "msm": 2.0}, {"msm": 1.5}, 2, Criterion("msm", False))["step"] == 2
    assert better({"step": 1, "msm": 2.0}, {"msm": 2.5}, 2, Criterion("msm", False))["step"] == 1
