"""Checkpoints come back whole; which is the best one, also where a validation gives no number."""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.data.stream import StatelessSource
from cc_train.runs import checkpoints, run_folder
from cc_train.runs.checkpoints import Criterion
from cc_train.training.loop import fit
from cc_train.training.objective import Objective
from cc_train.training.settings import Loop

NAN, INF = math.nan, math.inf


class Scripted(Objective):
    """An objective whose validations give the figures that the test names."""

    over = "batch"

    def __init__(self, figures: list[float], more: bool) -> None:
        super().__init__(nn.Linear(1, 1))
        self.criterion, self.figures = Criterion("figure", higher_is_better=more), iter(figures)

    def groups(self, phase: str) -> list[dict[str, Any]]:
        return [{"params": list(self.network.parameters())}]

    def losses(
        self, phase: str, batch: Tensor, step: int, denominators: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return {"total": self.network(batch).square().sum()}

    def validate(self, network: nn.Module) -> tuple[dict[str, float], None]:
        return {"figure": next(self.figures), "other": 2.0}, None


@pytest.mark.parametrize(
    ("more", "figures", "best"),
    [
        (False, [1.0, NAN, 0.5], 3),
        (False, [NAN, 1.0, 2.0], 2),
        (False, [2.0, 1.0, -INF], 2),
        (True, [1.0, NAN, 2.0], 3),
        (True, [NAN, 1.0, 0.5], 2),
        (True, [1.0, INF, 2.0], 3),
        (True, [2.0, 2.0, 1.0], 2),
        (False, [1.0, 1.0, 2.0], 2),
        (True, [NAN, NAN, NAN], None),
    ],
)
def test_no_number_is_never_the_best(
    tmp_path: Path, more: bool, figures: list[float], best: int | None
) -> None:
    """Keeps away: a NaN that is the best for ever, or after which nothing is better any more."""
    settings = Loop(steps=len(figures), batch_size=1, validate_every=1, checkpoint_every=1,
                    keep_checkpoints=3, device="cpu")  # fmt: skip
    lines = io.StringIO()
    fit(
        Scripted(figures, more),
        StatelessSource(lambda number: torch.ones(1, 1)),
        settings,
        config={},
        run=tmp_path,
        resume="never",
        console=Console(file=lines, width=200),
    )
    stored = checkpoints.read_state(tmp_path, len(figures))["best"]
    assert stored.get("step") == best
    bad = [step for step, figure in enumerate(figures, 1) if not math.isfinite(figure)]
    for step in bad:
        assert f"validation {step}: figure is no finite number" in lines.getvalue()
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    validated = [line for line in log if line["part"] == "validation"]
    assert [line["step"] for line in validated if "figure" not in line] == bad
    assert all(line["other"] == 2.0 for line in validated)


def test_checkpoints_come_back_and_old_ones_go(tmp_path: Path) -> None:
    tensors = {"a": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.int64)}
    for step in range(1, 6):
        checkpoints.write(tmp_path, step, tensors, {"x": 1}, tensors, {"best": {}})
    checkpoints.prune(tmp_path, 5, 2, best=3)
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


def test_a_new_checkpoint_outlives_damaged_ones_of_later_steps(tmp_path: Path) -> None:
    """Keeps away: after a damaged checkpoint each new one was removed as soon as it was written."""
    tensors = {"a": torch.zeros(1)}
    for step in (500, 1000, 600):  # 1000 is damaged, and the run went on from 500
        checkpoints.write(tmp_path, step, tensors, {}, tensors, {"best": {}})
    checkpoints.prune(tmp_path, 600, 1, best=None)
    assert checkpoints.steps(tmp_path) == [600]


def test_tensors_of_the_model_are_stored_once(tmp_path: Path) -> None:
    """Keeps away: checkpoints twice as large as need be; and old ones that are not read."""
    model = {"a": torch.ones(2)}
    for training, raw, exported in (
        ({}, [1.0, 1.0], None),  # without an average
        ({"network.a": torch.zeros(2)}, [0.0, 0.0], [1.0, 1.0]),
        ({"network.a": torch.zeros(2), "exported.a": model["a"]}, [0.0, 0.0], [1.0, 1.0]),  # old
    ):
        checkpoints.write(tmp_path, 1, model, {}, training, {"best": {}})
        tensors = checkpoints.read(tmp_path, 1).training
        assert tensors["network.a"].tolist() == raw
        assert (tensors["exported.a"].tolist() if "exported.a" in tensors else None) == exported


def test_a_kill_between_two_names_loses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the only good checkpoint removed before the one in its place has its name."""
    first, second = ({"a": torch.tensor([value])} for value in (1.0, 2.0))
    checkpoints.write(tmp_path, 3, first, {}, {}, {"best": {}})
    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if str(source).endswith(".tmp"):
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(checkpoints.os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(tmp_path, 3, second, {}, {}, {"best": {}})
    monkeypatch.undo()
    checkpoint, damaged = checkpoints.read_last(tmp_path)
    assert checkpoint is not None
    assert (checkpoint.step, checkpoint.training["network.a"].tolist(), damaged) == (3, [1.0], [])


def test_a_checkpoint_of_another_network_is_refused() -> None:
    """Keeps away: a traceback where a newer version has a head that the checkpoint lacks."""
    module = nn.Linear(2, 1)
    checkpoints.load(module, {"a.weight": torch.ones(1, 2), "a.bias": torch.ones(1)}, "a.")
    assert module.bias.item() == 1
    with pytest.raises(UserError, match=r'another network \(.*Missing key\(s\).*"bias"'):
        checkpoints.load(module, {"a.weight": torch.ones(1, 2), "b.bias": torch.ones(1)}, "a.")


def test_a_run_before_its_first_validation_has_its_last_network(tmp_path: Path) -> None:
    """Keeps away: hours of training that nobody can caption with, since it was stopped early."""
    (tmp_path / "settings.json").write_text("{}")
    for step in (4, 8):
        checkpoints.write(tmp_path, step, {"x": torch.zeros(1)}, {}, {}, {"best": {}})
    assert checkpoints.best_step(tmp_path) == (8, False)
    assert run_folder.best_model(tmp_path)[1] == 8
    assert not run_folder.is_validated(tmp_path)
    checkpoints.write(tmp_path, 12, {"x": torch.zeros(1)}, {}, {}, {"best": {"step": 4}})
    assert run_folder.best_model(tmp_path)[1] == 4
    assert run_folder.is_validated(tmp_path)
