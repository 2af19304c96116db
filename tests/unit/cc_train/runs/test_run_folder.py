"""Which run a path stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_train.runs import run_folder


def test_a_folder_that_is_no_run_says_which_may_be_meant(tmp_path: Path) -> None:
    """Keeps away: "Give the --out of a training" of a slip of the keyboard, or one folder up."""
    with pytest.raises(UserError, match=r'captioner_mini: no .*\. Did you mean "captioner-mini"\?'):
        run_folder.best_model(Path("captioner_mini"))
    (tmp_path / "captioner/checkpoints/000002").mkdir(parents=True)
    with pytest.raises(UserError, match=rf'Did you mean "{tmp_path}/captioner"\?'):
        run_folder.best_model(tmp_path)
    with pytest.raises(UserError, match="Give the --out of a training"):
        run_folder.best_model(tmp_path / "nowhere")
