"""What a new network takes over from a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cc_prep.errors import UserError
from cc_train.runs import transfer
from cc_train.runs.stored_run import Run


def test_settings_that_no_shape_shows() -> None:
    """Keeps away: a remedy that names a setting of the other run which this system lacks."""
    settings = {"encoder": {"heads": 4, "standardise": True}}
    run = Run(Path("somewhere"), "pair", settings, {}, 0)
    transfer.require_same(run, "encoder.heads", 4)
    with pytest.raises(UserError, match=r"encoder\.heads=4, not 2\. Set eyes\.heads=4"):
        transfer.require_same(run, "encoder.heads", 2, "eyes.heads")
    with pytest.raises(UserError, match=r"=True, not False\. Set encoder\.standardise=True"):
        transfer.require_same(run, "encoder.standardise", False)


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
