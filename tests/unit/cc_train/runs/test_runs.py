"""What recipes share of loading a run, and of starting from one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.runs import run_folder, stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems.procap import stage1


class Settings(Section):
    width: int = 2
    mirror: float = 0.0


def run_of(settings: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Run:
    return Run(Path("somewhere"), "pair", settings, tensors, 0)


def test_settings_of_an_older_run() -> None:
    """Keeps away: a run that lacks a setting of trainings alone and cannot be loaded any more, and
    one that lacks a size and is loaded with today's default."""
    assert stored_run.settings_of(run_of({"width": 3}, {}), Settings, ["mirror"]) == Settings(
        width=3
    )
    seen = run_of({"width": 3, "mirror": 0.5, "samples": {}}, {})
    assert stored_run.settings_of(seen, Settings).mirror == 0.5
    with pytest.raises(KeyError, match="width"):
        stored_run.settings_of(run_of({"mirror": 0.5}, {}), Settings, ["mirror"])


def test_settings_that_no_shape_shows() -> None:
    """Keeps away: a remedy that names a setting of the other run which this system lacks."""
    run = run_of({"encoder": {"heads": 4, "standardise": True}}, {})
    transfer.require_same(run, "encoder.heads", 4)
    with pytest.raises(UserError, match=r"encoder\.heads=4, not 2\. Set eyes\.heads=4"):
        transfer.require_same(run, "encoder.heads", 2, "eyes.heads")
    with pytest.raises(UserError, match=r"=True, not False\. Set encoder\.standardise=True"):
        transfer.require_same(run, "encoder.standardise", False)


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
        ({"width": "wide"}, {}, "1 validation error"),
        ({"width": 2}, {"weight": torch.zeros(1, 3)}, "Error.s. in loading state_dict"),
    ],
)
def test_a_damaged_run_is_one_line(
    settings: dict[str, Any], tensors: dict[str, torch.Tensor], reason: str
) -> None:
    """Keeps away: a traceback of pydantic or torch for a run that is not whole."""

    def build(run: Run) -> nn.Linear:
        return nn.Linear(stored_run.settings_of(run, Settings, ["mirror"]).width, 1)

    with pytest.raises(UserError, match=f"somewhere: no captioner .{reason}.*Train it anew"):
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


def test_a_folder_that_is_no_run_says_which_may_be_meant(tmp_path: Path) -> None:
    """Keeps away: "Give the --out of a training" of a slip of the keyboard, or one folder up."""
    with pytest.raises(UserError, match=r'captioner_mini: no .*\. Did you mean "captioner-mini"\?'):
        run_folder.best_model(Path("captioner_mini"))
    (tmp_path / "captioner/checkpoints/000002").mkdir(parents=True)
    with pytest.raises(UserError, match=rf'Did you mean "{tmp_path}/captioner"\?'):
        run_folder.best_model(tmp_path)
    with pytest.raises(UserError, match="Give the --out of a training"):
        run_folder.best_model(tmp_path / "nowhere")


def test_an_error_without_words_is_named() -> None:
    """Keeps away: an IndexError about the message of another error."""

    def build(run: Run) -> nn.Linear:
        raise ValueError

    with pytest.raises(UserError, match=r"somewhere: no captioner \(ValueError\)"):
        stored_run.network_of(run_of({}, {}), build, "cpu")


def test_a_start_of_other_sizes_says_which_tensor() -> None:
    """Keeps away: an --init of another width that ends in torch's traceback."""
    network = nn.Linear(2, 1)
    transfer.take_over(network, nn.Linear(2, 1).state_dict(), Path("before"))
    with pytest.raises(UserError, match="before has other sizes: size mismatch for weight"):
        transfer.take_over(network, nn.Linear(3, 1).state_dict(), Path("before"))


def test_rows_of_words_move_to_their_new_places() -> None:
    """Keeps away: a captioner that starts from another one and says each word for another."""
    tensors = {"out": torch.tensor([[1.0], [2.0], [3.0]]), "rest": torch.ones(2)}
    own = {"out": torch.tensor([[-1.0], [-2.0]]), "rest": torch.zeros(2)}
    moved = transfer.with_rows(tensors, own, ["out"], [2, None])
    assert moved["out"].tolist() == [[3.0], [-2.0]]
    assert moved["rest"] is tensors["rest"]
    wider = {**own, "out": torch.zeros(2, 5)}
    assert transfer.with_rows(tensors, wider, ["out"], [2, None])["out"] is tensors["out"]
