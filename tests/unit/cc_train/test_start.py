"""What stands in a run's folder before its first step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cc_prep import weights
from cc_prep.errors import UserError
from cc_train import start, systems
from cc_train.cli import train
from cc_train.runs import checkpoints, run_folder
from cc_train.training.task import Task, TrainingRequest
from tests import toy_captioner


def test_files_of_a_run_that_never_began_are_replaced(tmp_path: Path) -> None:
    """Keeps away: a captioner that is trained with other words than those in its folder."""
    run_folder.write_files(tmp_path, {"words.json": b"old"})
    run_folder.write_files(tmp_path, {"words.json": b"new"})
    assert (tmp_path / "words.json").read_bytes() == b"new"
    checkpoints.write(tmp_path, 1, {}, {}, {}, {"metrics": {}, "best": {}})
    run_folder.write_files(tmp_path, {"words.json": b"newer", "more.json": b"1"})
    assert (tmp_path / "words.json").read_bytes() == b"new", "a run that goes on has its own"
    assert (tmp_path / "more.json").read_bytes() == b"1"


def test_what_identifies_a_run_is_no_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: an `about` that a setting of the same name overwrites without a word."""

    def prepare(settings: object, request: TrainingRequest) -> Task:
        return Task(None, None, 1, {"width": "of the shards"})  # type: ignore[arg-type]

    monkeypatch.setattr(systems, "recipe", lambda name: SimpleNamespace(prepare=prepare))
    with pytest.raises(AssertionError, match="also a setting"):
        start.train("toy", toy_captioner.Settings(), TrainingRequest([], [], tmp_path))


def test_what_a_system_decides_is_stored_with_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: weights that do not say of which sizes they are, and are read with others."""
    stored: dict[str, object] = {}

    def prepare(settings: toy_captioner.Settings, request: TrainingRequest) -> Task:
        resolved = settings.model_copy(update={"width": 40})
        return Task(None, None, 1, {}, settings=resolved)  # type: ignore[arg-type]

    monkeypatch.setattr(systems, "recipe", lambda name: SimpleNamespace(prepare=prepare))
    monkeypatch.setattr(start, "fit", lambda *_, config, **options: stored.update(config) or {})
    start.train("toy", toy_captioner.Settings(), TrainingRequest([], [], tmp_path))
    assert stored["width"] == 40


def test_a_training_imports_no_compiler_and_no_nltk() -> None:
    """Keeps away: five seconds of processor time before the first step."""
    program = """
import sys, torch
from cc_train import start, systems
from cc_train.text import words_of
from cc_train.training import optim

systems.recipe("pair"), systems.recipe("stage1")
words_of("The small red cube, left-most, is gone. Nothing else has changed.")
for kind in ("adamw", "bert_adam"):
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = optim.build_optimizer([{"params": [weight]}], 0.1, (0.9, 0.99), kind)
    weight.sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    optimiser.load_state_dict(optimiser.state_dict())
print([name for name in ("torch._dynamo", "nltk", "scipy.stats") if name in sys.modules])
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_a_training_starts_from_weights_by_name() -> None:
    """Keeps away: "no such file" for a name that every other option takes."""
    assert train._start("clip4idc-mini") == weights.verify("clip4idc-mini").path
    with pytest.raises(UserError, match="--init clip4idc-min: no such file or folder"):
        train._start("clip4idc-min")
