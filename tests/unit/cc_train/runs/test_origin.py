"""What a run's settings say of the weights that it started from."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.storage import sha256
from cc_train.runs import origin


def packed(folder: Path) -> Path:
    """A packed network; only its bytes matter here."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_folders_of_one_name_are_two_starts(tmp_path: Path) -> None:
    """Keeps away: a run that goes on from another folder's weights, since both are called `run`;
    and a card with the folders of somebody's machine."""
    first, second = (
        origin.started_from(packed(tmp_path / name / "run"), None) for name in ("one", "two")
    )
    assert first is not None
    assert second is not None
    assert first["place"] != second["place"]
    assert first["name"] == second["name"] == "run"
    assert first["sha256"] == sha256(tmp_path / "one/run/model.safetensors")
    assert str(tmp_path) not in str(first)
    assert origin.started_from(tmp_path / "one/run", str(tmp_path / "one/run")) == first


def test_a_name_stands_for_its_place(tmp_path: Path) -> None:
    """Keeps away: a start from the hub that is named by the folder of its cache."""
    cache = packed(tmp_path / "snapshots/0123")
    start = origin.started_from(cache, "someone/captioner")
    assert start is not None
    assert start["name"] == "someone/captioner"
    moved = packed(tmp_path / "elsewhere/4567")
    assert origin.started_from(moved, "someone/captioner") == start


def test_a_checkpoint_is_named_with_its_run(tmp_path: Path) -> None:
    """Keeps away: cards that call every start `model.safetensors`."""
    step = packed(tmp_path / "run/checkpoints/001000")
    start = origin.started_from(step / "model.safetensors", None)
    assert start is not None
    assert start["name"] == "run/checkpoints/001000/model.safetensors"
    assert origin.start_in_words(start) == f"{start['name']} (SHA-256 {start['sha256'][:12]})"


def test_new_weights(tmp_path: Path) -> None:
    assert origin.started_from(None, None) is None
    assert origin.start_in_words(None) == "new weights"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no checkpoint"):
        origin.started_from(tmp_path / "empty", None)
