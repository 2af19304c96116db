"""Outputs that cannot be written are said before any work."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.storage import outputs


def test_a_folder_can_be_made_or_is_there(tmp_path: Path) -> None:
    """Keeps away: a refusal of folders that are not there yet, or a folder that the check made."""
    outputs.check_folder(str(tmp_path))
    outputs.check_folder(str(tmp_path / "new" / "below"))
    outputs.check_folder("s3://bucket/out")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    """Keeps away: an hour of scores, and then a word that --out is a file."""
    (tmp_path / "scores").write_text("")
    with pytest.raises(UserError, match=r"--out .*scores: a file, not a folder"):
        outputs.check_folder(str(tmp_path / "scores"))
    with pytest.raises(UserError, match=r"scores is a file, not a folder.*Give another --mask"):
        outputs.check_folder(str(tmp_path / "scores" / "new"), "--mask")
    (tmp_path / "dead").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="not a folder"):
        outputs.check_folder(str(tmp_path / "dead"))


def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    """Keeps away: a page that was drawn, and then a word that --out is a folder."""
    outputs.check_file(str(tmp_path / "page.html"))
    outputs.check_file(os.devnull)
    with pytest.raises(UserError, match="a folder, not a file"):
        outputs.check_file(str(tmp_path))
    (tmp_path / "page").write_text("")
    outputs.check_file(str(tmp_path / "page"))
    with pytest.raises(UserError, match="a file, not a folder"):
        outputs.check_file(str(tmp_path / "page" / "page.html"))
