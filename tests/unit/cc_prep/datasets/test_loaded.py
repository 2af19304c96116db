"""`datasets.open`: pairs with their images, by index and in order."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from cc_prep import datasets
from cc_prep.errors import RejectedPair, UserError


def test_pairs_come_with_their_images_and_masks(synth_root: Path) -> None:
    pairs = datasets.open("synth", root=str(synth_root), split="test")
    records = [pair.record for pair in pairs]
    assert len(pairs) == len(records) > 1
    changed = next(pair for pair in pairs if pair.record.kind == "change")
    name = synth_root / changed.record.after
    assert np.array_equal(changed.after, cv2.imread(str(name))[..., ::-1])
    assert changed.captions == changed.record.captions != ()
    assert changed.mask is not None
    assert changed.mask.shape == changed.before.shape[:2] == (64, 64)
    different = (changed.before != changed.after).any(axis=2)
    assert different[changed.mask == 1].mean() > 0.5
    assert np.array_equal(changed.mask, changed.mask_before | changed.mask_after)
    unchanged = next(pair for pair in pairs if pair.record.kind == "no_change")
    assert not np.any([unchanged.mask, unchanged.mask_before, unchanged.mask_after])
    assert [pair.record for pair in pairs[1:]] == records[1:]
    assert pairs[-1].record == records[-1]


def test_images_take_the_size_that_is_asked_for(synth_root: Path) -> None:
    pair = datasets.open("synth", root=str(synth_root), split="test", size=32)[0]
    assert pair.before.shape == pair.after.shape == (32, 32, 3)


@pytest.mark.parametrize("size", [None, 32])
def test_the_arrays_may_be_changed(
    synth_root: Path, video_root: Path, size: int | None, recwarn: pytest.WarningsRecorder
) -> None:
    """Keeps away: torch's warning for each image, and augmentation that works on videos alone."""
    for name, root, split in (("synth", synth_root, "test"), ("video", video_root, "train")):
        for pair in datasets.open(name, root=str(root), split=split, size=size)[:4]:
            for array in (pair.before, pair.after, pair.mask, pair.mask_before, pair.mask_after):
                if array is not None:
                    torch.from_numpy(array)
                    array[:] = 0
    assert not recwarn.list


def test_mistakes(synth_root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no split 'testing'"):
        datasets.open("synth", root=str(synth_root), split="testing")
    with pytest.raises(UserError, match="no folder"):
        datasets.open("synth", root=str(tmp_path / "nowhere"))
    pairs = datasets.open("synth", root=str(synth_root), split="test")
    pairs.root = str(tmp_path)
    with pytest.raises(RejectedPair, match="missing image"):
        pairs[0]


def test_each_side_has_the_size_of_its_image(tmp_path: Path) -> None:
    """Keeps away: what appeared, marked in the wrong places of a larger image after."""
    for name, side in (("b", 20), ("a", 40), ("m", 40)):
        cv2.imwrite(str(tmp_path / f"{name}.png"), np.full((side, 6 * side // 5, 3), 255, np.uint8))
    header = "before,after,mask_before,mask_after"
    (tmp_path / "pairs.csv").write_text(f"{header}\nb.png,a.png,m.png,m.png")
    [pair] = datasets.open("own", root=str(tmp_path))
    assert pair.mask is not None
    assert pair.mask_before is not None
    assert pair.mask_after is not None
    assert pair.mask.shape == pair.mask_before.shape == pair.before.shape[:2]
    assert pair.mask_after.shape == pair.after.shape[:2] == (40, 48)
