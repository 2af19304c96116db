"""Two images that a captioner is given: what is wrong with one, and what helps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cc_prep.errors import UserError
from cc_train.data import image_pairs


def test_an_option_is_named_to_those_who_have_it(tmp_path: Path) -> None:
    """Keeps away: "--resize" on the page and in answers to programs, which give decoded images."""
    sides = [np.zeros((32, side, 3), np.uint8) for side in (32, 64)]
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    for pixels, file in zip(sides, files, strict=True):
        Image.fromarray(pixels).save(file)
    for pair, way in ((files, "them (--resize)"), (sides, "one of them first")):
        with pytest.raises(UserError) as caught:
            image_pairs.in_own_size(*pair)
        assert (
            caught.value.remedy == f"Give two images of one size, of the same view, or resize {way}"
        )


def test_a_remedy_helps_with_what_is_wrong(tmp_path: Path) -> None:
    """Keeps away: "Save it again, as PNG" of a link that leads to itself, or of a folder."""
    Image.new("RGB", (32, 32)).save(tmp_path / "a#frame=0.png")
    pair = image_pairs.in_own_size(*[str(tmp_path / "a#frame=0.png")] * 2)
    assert pair.pixels.shape == (2, 32, 32, 3)
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "folder.png").mkdir()
    for name, remedy in (
        ("loop.png", "Check the path"),
        ("folder.png", "Check the path"),
        ("x" * 300 + ".png", "Check the path"),
        ("nowhere.png", "Check the path"),
        ("text.png", "Save it again, as PNG or JPEG"),
    ):
        with pytest.raises(UserError) as caught:
            image_pairs.in_own_size(tmp_path / name, np.zeros((32, 32, 3), np.uint8))
        assert (caught.value.remedy, name in caught.value.what) == (remedy, True)
