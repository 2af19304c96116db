"""A run read back: its settings and its network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.runs import run_folder, stored_run
from cc_train.runs.stored_run import Run
from cc_train.systems.procap import stage1


class Settings(Section):
    width: int = 2
    mirror: float = 0.0


def run_of(settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Run:
    return Run(Path("somewhere"), "pair", settings, tensors, 0)


def test_settings_that_a_run_lacks() -> None:
    """Keeps away: a run that lacks a size and is loaded with the default."""
    run = run_of({"width": 3, "mirror": 0.5, "samples": {}}, {})
    assert stored_run.settings_of(run, Settings) == Settings(width=3, mirror=0.5)
    with pytest.raises(KeyError, match="width"):
        stored_run.settings_of(run_of({"mirror": 0.5}, {}), Settings)


@pytest.mark.parametrize("settings", ["[" * 200_000, '{"system": "a", "system": "b"}', "[]"])
def test_metadata_of_a_stranger(tmp_path: Path, settings: str) -> None:
    """Keeps away: a RecursionError of a captioner whose settings nest, and the last of two."""
    save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors", {"settings": settings})
    for read in (stored_run.read, stored_run.system_of):
        with pytest.raises(UserError, match=r"model\.safetensors: damaged \(.*\)\. Restore it"):
            read(tmp_path)


def test_a_run_becomes_its_network() -> None:
    """Keeps away: a network that captions with dropout, or with untrained weights."""
    trained = nn.Linear(2, 1).state_dict()
    network = stored_run.network_of(run_of({}, trained), lambda run: nn.Linear(2, 1), "cpu")
    assert not network.training
    assert torch.equal(network.weight, trained["weight"])


@pytest.mark.parametrize(
    ("settings", "tensors", "reason"),
    [
        ({}, {}, "no width in it"),
        ({"width": "wide", "mirror": 0.0}, {}, "1 validation error"),
        (
            {"width": 2, "mirror": 0.0},
            {"weight": torch.zeros(1, 3)},
            "Error.s. in loading state_dict",
        ),
    ],
)
def test_a_damaged_run_is_one_line(
    settings: dict[str, Any], tensors: dict[str, torch.Tensor], reason: str
) -> None:
    """Keeps away: a traceback of pydantic or torch for a run that is not whole."""

    def build(run: Run) -> nn.Linear:
        return nn.Linear(stored_run.settings_of(run, Settings).width, 1)

    with pytest.raises(UserError, match=f"somewhere: no captioner .{reason}.*Train it again"):
        stored_run.network_of(run_of(settings, tensors), build, "cpu")


def test_a_stage_1_without_a_tensor_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a KeyError of a packed run that lost a part, where stage 2 starts from it."""
    stored = replace(run_of({}, {"text_pos_emb.weight": torch.zeros(4, 64)}), system="stage1")
    monkeypatch.setattr(stored_run, "read", lambda folder, system: stored)
    with pytest.raises(UserError, match=r"no encoder \(no conv_to_embedding.1.weight in it\)"):
        stage1.read_encoder(Path("somewhere"))
    stored.tensors["text_pos_emb.weight"] = torch.zeros(4)
    with pytest.raises(UserError, match="no encoder"):
        stage1.read_encoder(Path("somewhere"))


def test_an_error_without_words_is_named() -> None:
    """Keeps away: an IndexError about the message of another error."""

    def build(run: Run) -> nn.Linear:
        raise ValueError

    with pytest.raises(UserError, match=r"somewhere: no captioner \(ValueError\)"):
        stored_run.network_of(run_of({}, {}), build, "cpu")


def test_photos_mini_is_not_trained_further() -> None:
    """Keeps away: a remedy that leaves open from what a captioner of photographs can learn on."""
    with pytest.raises(UserError, match="a run of photos, not of pair") as caught:
        stored_run.read(run_folder.locate("photos-mini"), "pair")
    assert caught.value.remedy.startswith("photos-mini cannot be trained further. Give composites")
