"""The training of manifests/paper/scorer_clevr.yaml takes the steps of SCORER's public script."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from cc_train import configs
from cc_train.systems.scorer import recipe
from cc_train.systems.scorer.encoder import Attention
from cc_train.text import IGNORED
from cc_train.training.settings import Loop
from cc_train.training.trainer import Trainer
from tests.conftest import golden
from tests.parity.test_scorer_golden import Golden

SCENES = 33_830  # of the training split of CLEVR-Change
STEPS, FALLS = 20, 7  # the rate falls after so many steps: twice
HALVES = ("changed", "unchanged")
TOO_HOT = 5.0  # of the logarithm of the temperature, which ends at ln 100


def of_paper() -> recipe.Settings:
    return configs.load(recipe.Settings, "scorer", "paper/scorer_clevr", [], Console(quiet=True))


def test_the_rate_of_each_step() -> None:
    """An epoch of the script has 265 steps, the last with a smaller batch."""
    loop = of_paper().loop.with_resolved_epochs(SCENES, 1)
    assert loop.steps == 10_000
    for step in range(0, loop.steps, 25):
        epoch = step // math.ceil(SCENES / 128)
        assert 2e-4 * 0.1 ** (epoch // 15) == pytest.approx(
            loop.learning_rate * loop.lr_multiplier(step)
        )


@pytest.mark.parametrize("folder", golden("scorer"), ids=lambda f: f.name)
def test_twenty_steps(folder: Path, tmp_path: Path) -> None:
    """As a second implementation, written as the script is: losses, their mean, Adam, the fall of
    the rate, the bound of the temperature.

    Keeps away: CBR that is trained, gradients that are clipped, weights that decay, a temperature
    without a bound, a rate that falls a step late.
    """
    one = Golden(folder)
    one.reconstruction.requires_grad_(False)
    without_dropout(one.network)
    with torch.no_grad():
        last_of(one).logit_scale.fill_(TOO_HOT)
    second, start = copy.deepcopy(one), copy.deepcopy(one.network)
    paper = of_paper().loop
    changed = {"steps": STEPS, "batch_size": 4, "decay_epochs": None, "decay_steps": FALLS}
    trainer = Trainer(
        one.objective, Loop(**{**paper.model_dump(), **changed}), {}, tmp_path / "run"
    )
    batches = batches_of(one)
    for step, batch in enumerate(batches):
        trainer.step([batch], step)
    as_the_script(second, batches)
    others, before = second.parameters(), dict(start.named_parameters())
    moved = 0.0
    for name, parameter in one.parameters().items():
        if is_noise(name, one):
            continue
        torch.testing.assert_close(parameter, others[name], atol=1e-5, rtol=0, msg=name)
        if name.startswith("speaker."):
            old = before[name]
            moved = max(moved, float((parameter - old).detach().abs().max()))
    assert last_of(one).logit_scale <= math.log(100)
    assert moved > 1e-3, "the steps changed nothing"


def last_of(one: Golden) -> Attention:
    """The attention whose queries and keys are matched."""
    layer: Any = one.network.change_detector.scorer[-1]
    attention: Attention = layer.attention
    return attention


def without_dropout(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]


def is_noise(name: str, one: Golden) -> bool:
    """Whether the gradient of a parameter is 0 but for rounding: a softmax sees no constant."""
    last = f"scorer.{len(one.network.change_detector.scorer) - 1}."
    return name.endswith("key.bias") and last not in name


def batches_of(one: Golden) -> list[dict[str, dict[str, Tensor]]]:
    """Batches of random features, with captions of several lengths."""
    rng = np.random.default_rng(0)
    shape = one.pair("pos").shape
    ids = one.arrays["in/pos_labels"]
    words = len(one.network.codec.words)
    batches = []
    for _ in range(STEPS):
        before = rng.standard_normal((shape[0], *shape[2:])).astype(np.float32)
        batch = {}
        for half in HALVES:
            after = before + rng.standard_normal(before.shape).astype(np.float32)
            drawn = torch.from_numpy(rng.integers(4, words, tuple(ids.shape)))
            drawn[:, 0] = ids[0, 0]
            labels = drawn.roll(-1, 1)
            for row, length in enumerate(rng.integers(2, ids.shape[1], len(ids)).tolist()):
                drawn[row, length:] = one.network.codec.marks.pad
                labels[row, length:] = IGNORED
            batch[half] = {
                "before_after": torch.from_numpy(np.stack((before, after), axis=1)),
                "ids": drawn,
                "labels": labels,
                "scene": torch.arange(len(ids)),
            }
        batches.append(batch)
    return batches


def as_the_script(one: Golden, batches: list[dict[str, dict[str, Tensor]]]) -> None:
    """Trains as the script's loop does, plainly: what CBR learns is thrown away."""
    trained = dict(one.network.named_parameters())
    means = {name: torch.zeros_like(p) for name, p in trained.items()}
    squares = {name: torch.zeros_like(p) for name, p in trained.items()}
    for step, batch in enumerate(batches):
        one.network.zero_grad()
        parts = [losses_of(one, batch[half]) for half in HALVES]
        caption, similarity, cbr = (sum(part) / 2 for part in zip(*parts, strict=True))
        (caption + 0.1 * similarity + 0.001 * cbr).backward()
        rate = 2e-4 * 0.1 ** (step // FALLS)
        for name, parameter in trained.items():
            if parameter.grad is None:
                continue
            means[name] = 0.9 * means[name] + 0.1 * parameter.grad
            squares[name] = 0.999 * squares[name] + 0.001 * parameter.grad**2
            mean = means[name] / (1 - 0.9 ** (step + 1))
            square = squares[name] / (1 - 0.999 ** (step + 1))
            with torch.no_grad():
                parameter -= rate * mean / (square.sqrt() + 1e-8)
        with torch.no_grad():
            last_of(one).logit_scale.clamp_(max=math.log(100))


def losses_of(one: Golden, pairs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Caption, contrast and CBR of one of the two runs of a step."""
    encoder, speaker, cbr = one.network.change_detector, one.network.speaker, one.reconstruction
    encoded = encoder(*one.network.features(pairs["before_after"]))
    visible = pairs["ids"] != one.network.codec.marks.pad
    hidden = speaker.hidden(pairs["ids"], encoded.difference, visible)
    chances = speaker.logit(hidden).log_softmax(-1)
    said = pairs["labels"] != IGNORED
    caption = -chances[said].gather(1, pairs["labels"][said][:, None]).mean()
    queries, scale = encoded.queries, last_of(one).logit_scale.exp()
    similarity = (
        own_column(scale * matched(queries.before, queries.after_keys))
        + own_column(scale * matched(queries.after, queries.before_keys))
    ) / 2
    sentence = (hidden * visible[..., None]).sum(1) / hidden.shape[1]
    made_up = cbr(encoded.before, sentence)
    found = cbr.contra.logit_scale.exp() * matched(
        cbr.contra.query(made_up), cbr.contra.key(encoded.after)
    )
    return caption, similarity, (own_column(found) + own_column(found.T)) / 2


def matched(queries: Tensor, keys: Tensor) -> Tensor:
    products = torch.einsum("ald,bmd->ablm", queries, keys)
    return (products.amax(3).mean(2) + products.amax(2).mean(2)) / 2


def own_column(matching: Tensor) -> Tensor:
    return -matching.log_softmax(1).diagonal().mean()
