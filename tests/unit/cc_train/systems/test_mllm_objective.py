"""What is learned: captions of two pairs, and attention on a fixed box."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.systems.mllm import attention_loss, recipe
from cc_train.systems.mllm.batches import AttentionControl
from cc_train.systems.mllm.grid_features import Connector, GridConnector, SeeingLanguageModel
from cc_train.systems.mllm.objective import MllmObjective
from tests import vlm_factory
from tests.overfitting import Learning, overfit

CAPTIONS = ["the red cube moved to the left", "there is no change"]
ENTITIES = [["red cube"], []]
OFF = AttentionControl(where="none")


def made(
    folder: Path,
    family: str,
    control: AttentionControl,
    size: int | None = None,
    seed: int = 0,
    **more: Any,
) -> MllmObjective:
    lora = {"vision": 4, "bridge": 4, "language": 16, "dropout": 0.0, **more}
    model = {} if size is None else {"image_size": size}
    one = vlm_factory.captioner(folder, family, seed=seed, lora=lora, model=model)
    return MllmObjective(one, lambda captioner: {}, control, 0.0, 1.0, "cpu")


def boxed(objective: MllmObjective, marked: tuple[bool, ...] = (True, False)) -> dict[str, Any]:
    """A batch whose masks are the top left quarter of pairs that are marked, or empty."""
    one = objective.network
    control = objective.control if objective.control.is_on else AttentionControl()
    grid = recipe.control_grid(one, control)
    assert grid is not None
    mask = np.zeros((vlm_factory.SIZE, vlm_factory.SIZE))
    mask[: vlm_factory.SIZE // 2, : vlm_factory.SIZE // 2] = 1
    soft = torch.from_numpy(attention_loss.soft_mask(mask, grid)).view(1, -1)
    return vlm_factory.batch(
        one, CAPTIONS, ENTITIES, mask=torch.cat([soft * m for m in marked]),
        has_mask=torch.tensor(marked),
    )  # fmt: skip


def train(
    objective: MllmObjective,
    batch: dict[str, Any],
    steps: int,
    is_done: Callable[[], bool] = lambda: False,
) -> list[dict[str, Tensor]]:
    """The losses of every step, up to the tenth one after which it is done."""
    groups = [{k: g[k] for k in ("params", "weight_decay")} for g in objective.groups("model")]
    optimiser = torch.optim.AdamW(groups, lr=1e-2)
    history = []
    for step in range(steps):
        denominators = objective.denominators(batch)
        clamped = {name: total.clamp(min=1) for name, total in denominators.items()}
        losses = objective.losses("model", batch, step, clamped)
        optimiser.zero_grad()
        losses["total"].backward()
        objective.after_step(step)
        optimiser.step()
        history.append({name: value.detach() for name, value in losses.items()})
        if step % 10 == 9 and is_done():
            break
    return history


ATTENTION: list[tuple[str, Any, int | None]] = [
    ("instructblip", "vision", None),
    ("qwen2_5_vl", "vision", None),
    ("smolvlm", "vision", None),
    ("qwen3_vl", "llm", 112),
]


def learn_attention(
    folder: Path, family: str, where: Any, size: int | None, seed: int = 0
) -> Learning:
    """Until half of the loss is gone, the attention is inside of the mask, and captions gain."""
    control = AttentionControl(where=where, weight=1.0)
    objective = made(folder, family, control, size, seed=seed)
    first: dict[str, float] = {}

    def is_learned(losses: dict[str, float]) -> bool:
        first.update(losses if not first else {})
        # The blurred mask keeps about half of its weight inside: more would be too much.
        return (
            losses["attention"] < 0.5 * first["attention"]
            and losses["inside"] > min(2 * first["inside"], 0.5)
            and losses["caption"] < first["caption"]
        )

    batches = itertools.repeat(boxed(objective, (True, True)))
    return overfit(objective, batches, 100, 1e-2, is_learned, every=1)


@pytest.mark.parametrize(("family", "where", "size"), ATTENTION)
def test_attention_goes_where_it_is_drawn(
    folder: Path, family: str, where: Any, size: int | None
) -> None:
    """Keeps away: a loss of other places, heads or images than those that the mask lies over."""
    assert learn_attention(folder, family, where, size).is_done


def test_before_and_after_are_controlled_apart_from_their_neighbours(folder: Path) -> None:
    """Keeps away: the loss of a pair without a mask, which would pull it to nowhere; and images
    that are taken for those of another pair."""
    objective = made(folder, "instructblip", AttentionControl(weight=1.0))
    batch = boxed(objective, (False, True))
    other = batch["before_after"].clone()
    other[0] = vlm_factory.pairs(1, seed=5)[0]
    denominators = objective.denominators(batch)
    assert int(denominators["masked"]) == 1
    losses = [
        objective.losses("model", {**batch, "before_after": one}, 0, denominators)["attention"]
        for one in (batch["before_after"], other)
    ]
    assert torch.equal(*losses)


def scales(network: nn.Module) -> dict[str, set[float]]:
    """The factors on the rate of what is trained: of connectors, and of all else."""
    one: Any = SimpleNamespace(network=network, weight_decay=0.1, connector_rate=0.5)
    names = {id(p): name for name, p in network.named_parameters()}
    rates: dict[str, set[float]] = {"connector": set(), "rest": set()}
    for group in MllmObjective.groups(one, "model"):
        for parameter in group["params"]:
            part = "connector" if ".connector." in names[id(parameter)] else "rest"
            rates[part].add(group["scale"])
    return rates


def test_the_rate_of_a_connector_is_that_of_a_new_one(folder: Path) -> None:
    """Keeps away: adapters of SmolVLM's own connector that get it as well."""
    network = nn.Module()
    connector = GridConnector(Connector(), (8, 4, 4), 16, 1.0)
    network.model = SeeingLanguageModel(nn.Linear(2, 2), connector, 0)
    assert scales(network) == {"connector": {0.5}, "rest": {1.0}}
    smolvlm = made(folder, "smolvlm", OFF).network
    assert scales(smolvlm) == {"connector": {1.0}, "rest": {1.0}}


def test_a_trained_model_is_let_go(folder: Path) -> None:
    """Keeps away: a tap that holds the model and its graph for the rest of the process."""
    objective = made(folder, "smolvlm", AttentionControl(weight=1.0))
    assert objective.tap is not None
    batch, tap = boxed(objective), objective.tap
    train(objective, batch, 1)
    objective.network.eval()(batch, 1)
    assert tap.calls == []
    model = weakref.ref(objective.network.base.model)
    del objective
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("family", ["instructblip", "smolvlm"])
def test_without_masks_or_weight_nothing_is_different(folder: Path, family: str) -> None:
    """Keeps away: control that changes a training in which it is switched off."""
    runs = []
    for control, marked in (
        (OFF, True), (AttentionControl(weight=0.0), True), (AttentionControl(), False),
    ):  # fmt: skip
        objective = made(folder, family, control)
        history = train(objective, boxed(objective, (marked, marked)), 3)
        runs.append(([one["total"] for one in history], objective.network.state_dict()))
    for totals, weights in runs[1:]:
        assert totals == runs[0][0]
        assert all(torch.equal(weights[name], value) for name, value in runs[0][1].items())


@pytest.mark.parametrize(
    ("family", "control", "lora", "words"),
    [
        ("instructblip", AttentionControl(where="llm"), {}, "learned queries, which have no pla"),
        ("qwen2_5_vl", AttentionControl(layer=0), {}, "vision layer 0 sees windows alone"),
        ("smolvlm", AttentionControl(layer=9), {}, r"no module .*layers\.9\..*self_attn"),
    ],
)  # fmt: skip
def test_attention_that_cannot_be_controlled_is_refused(
    folder: Path, family: str, control: AttentionControl, lora: dict[str, int], words: str
) -> None:
    """Keeps away: a loss that is computed and trains nothing, or not what it says."""
    with pytest.raises(UserError, match=words):
        made(folder, family, control, **lora)


def test_attention_of_frozen_layers_is_refused(folder: Path) -> None:
    """Keeps away: control of eyes that cannot learn, or are checkpointed by re-entry."""
    objective = made(folder, "smolvlm", AttentionControl(), vision=0)
    with pytest.raises(UserError, match="has no gradient"):
        train(objective, boxed(objective), 1)
    objective = made(folder, "smolvlm", AttentionControl())
    objective.network.base.model.train()
    objective.network.base.model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(UserError, match="has no gradient"):
        train(objective, boxed(objective), 1)


FAMILIES = ("instructblip", "internvl", "smolvlm")


def learn_captions(folder: Path, family: str, seed: int = 0) -> Learning:
    """Until the loss has fallen by 5 %: frozen noise is not talked out of it in few steps."""
    objective = made(folder, family, OFF, seed=seed)
    first: dict[str, float] = {}

    def is_learned(losses: dict[str, float]) -> bool:
        first.update(losses if not first else {})
        return losses["caption"] < 0.95 * first["caption"]

    batches = itertools.repeat(boxed(objective))
    return overfit(objective, batches, 100, 1e-2, is_learned, every=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_captions_are_learned(folder: Path, family: str) -> None:
    """Keeps away: labels a token beside the words, or adapters that learn nothing."""
    assert learn_captions(folder, family).is_done


def learn_to_say(folder: Path, seed: int = 0) -> Learning:
    """Until both captions are said, word by word."""
    objective = made(folder, "qwen3_vl", OFF, seed=seed)

    def are_said() -> bool:
        spoken = objective.network.eval().caption(vlm_factory.pairs(), entities=ENTITIES)
        objective.network.train()
        return [one.text for one in spoken] == CAPTIONS

    history = train(objective, boxed(objective), 200, are_said)
    return Learning(len(history) if are_said() else math.inf, 200)


def test_two_captions_are_said(folder: Path) -> None:
    """Keeps away: labels a token beside the words, which lower the loss all the same."""
    assert learn_to_say(folder).is_done
