"""Which run a path stands for."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch

from cc_prep.errors import UserError
from cc_train.runs import checkpoints, run_folder


def test_a_folder_that_is_no_run_says_which_may_be_meant(tmp_path: Path) -> None:
    """Keeps away: "Give the --out of a training" of a slip of the keyboard, or one folder up."""
    with pytest.raises(UserError, match=r'captioner_mini: no .*\. Did you mean "captioner-mini"\?'):
        run_folder.best_model(Path("captioner_mini"))
    (tmp_path / "captioner/checkpoints/000002").mkdir(parents=True)
    with pytest.raises(UserError, match=rf'Did you mean "{tmp_path}/captioner"\?'):
        run_folder.best_model(tmp_path)
    with pytest.raises(UserError, match="Give the --out of a training"):
        run_folder.best_model(tmp_path / "nowhere")


def test_an_import_that_breaks_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: the VQGAN of one checkpoint beside the network of another."""
    run, tensors = tmp_path / "run", {"weight": torch.zeros(2)}

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "write", full)
        with pytest.raises(OSError, match="No space"):
            run_folder.write_imported(run, {"vqgan.safetensors": b"first"}, {}, tensors)
    assert not list(run.iterdir())
    run_folder.write_imported(run, {"vqgan.safetensors": b"second"}, {"system": "pair"}, tensors)
    assert (run / "vqgan.safetensors").read_bytes() == b"second"
    assert run_folder.best_model(run)[1] == 0


def test_nothing_is_imported_into_a_training_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UserError, match="already holds a run"):
        run_folder.write_imported(tmp_path, {"vqgan.safetensors": b""}, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]
