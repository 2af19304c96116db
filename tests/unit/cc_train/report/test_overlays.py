"""Masks over images: what is right, wrong and missed, and the files that people get."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from cc_prep import manifest
from cc_prep.errors import UserError
from cc_prep.media import masks
from cc_prep.media.masks import fitted
from cc_train.captioner import Caption
from cc_train.report import overlays
from cc_train.serve import caption_service

COLOURS = {1: (0, 255, 0), 2: (255, 0, 0)}


def test_verdicts_of_a_mask() -> None:
    """Keeps away: another class than the true one that is shown as right."""
    mask = np.array([[1, 1, 0, 0, 2]], np.uint8)
    true = np.array([[1, 0, 1, 0, 1]], np.uint8)
    assert overlays.verdicts(mask, true).tolist() == [[1, 2, 3, 0, 2]]


def test_what_is_not_masked_stays_as_it_is() -> None:
    image = np.full((9, 9, 3), 100, np.uint8)
    mask = np.zeros((9, 9), np.uint8)
    mask[2:7, 2:7] = 1
    shown = overlays.over(image, mask, COLOURS)
    assert (shown[mask == 0] == 100).all()
    assert shown[4, 4].tolist() == [50, 178, 50]
    assert shown[2, 2].tolist() == [0, 255, 0], "the outline is not transparent"


def test_files_are_in_the_images_own_size(tmp_path: Path) -> None:
    """Keeps away: a mask that fits the captioner's small images alone."""
    images = np.zeros((24, 48, 3), np.uint8), np.full((24, 48, 3), 90, np.uint8)
    mask = np.zeros((8, 8), np.uint8)
    mask[:4] = 1
    paths = str(tmp_path / "mask.png"), str(tmp_path / "overlay.png")
    overlays.write(Caption("it moved", mask=mask), images, *paths)
    written = masks.read(paths[0], (((0,), 0), ((1,), 1)))
    assert written.shape == (24, 48)
    assert (written[:12] == 1).all()
    assert not written[12:].any()
    assert np.array_equal(masks.read(paths[0]), written)
    seen = cv2.imread(paths[0])[..., ::-1]
    assert (seen[:12] == overlays.COLOURS[0]).all(), "it looks black in a viewer"
    assert not seen[12:].any()
    picture = cv2.imread(paths[1])
    factor = -(-overlays.SIDE // 48)
    assert picture.shape == (24 * factor, 2 * 48 * factor + overlays.GAP, 3)


def test_masks_are_resized_as_for_their_scores(tmp_path: Path) -> None:
    """Keeps away: a picture whose right and wrong pixels are not those that were counted."""
    images = np.zeros((16, 16, 3), np.uint8), np.zeros((16, 16, 3), np.uint8)
    mask = np.zeros((32, 32), np.uint8)
    mask[::2] = 1  # which row is nearest is a convention
    overlays.write(Caption("it moved", mask=mask), images, str(tmp_path / "mask.png"), None)
    written = masks.read(str(tmp_path / "mask.png"), (((0,), 0), ((1,), 1)))
    assert np.array_equal(written, fitted(mask, 16, 16))


def test_a_captioner_without_masks_is_told_in_a_line(tmp_path: Path) -> None:
    images = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)
    with pytest.raises(UserError, match="predicts no masks") as raised:
        overlays.write(Caption("it moved"), images, str(tmp_path / "m.png"), None)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="no such picture"):
        overlays.check_names("m.jpg", None)
    with pytest.raises(UserError, match="no such picture"):
        overlays.check_names(None, "o.txt")


@pytest.mark.parametrize("name", ["levir_mci", "second_cc", "whu_cdc"])
def test_each_class_of_public_data_has_a_colour_of_its_own(name: str) -> None:
    """Keeps away: buildings and playgrounds that look alike."""
    classes = manifest.load(name).masks.names
    for colours in (overlays.COLOURS, caption_service.COLOURS):
        assert len({*colours[: len(classes)]}) == len(classes)
