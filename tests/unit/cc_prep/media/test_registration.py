"""Registration: the motion between two pictures, or a reject."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from cc_prep import datasets, manifest
from cc_prep.errors import Reason, RejectedPair, UserError
from cc_prep.inspect import inspection
from cc_prep.manifest import Manifest, Pairs
from cc_prep.media import images, registration
from cc_prep.media.images import resize
from cc_prep.steps.interpolate import Interpolate

SIZE = (144, 176)  # height and width


def picture(seed: int) -> np.ndarray:
    """Patches of several sizes, uint8 [H, W, 3]."""
    rng = np.random.default_rng(seed)
    layers = [rng.integers(0, 256, (side, side, 3), np.uint8) for side in (4, 9, 23)]
    return np.mean([resize(layer, SIZE) for layer in layers], axis=0).astype(np.uint8)


def motion(model: str) -> np.ndarray:
    if model == "translation":
        return np.array([[1, 0, 7.3], [0, 1, -5.6], [0, 0, 1]])
    turn = np.array([[1.04, -0.07, 6.0], [0.05, 0.97, -4.0], [0, 0, 1]])
    if model == "homography":
        turn[2] = (1.5e-4, -1e-4, 1)
    return turn


def moved(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    return cv2.warpPerspective(
        image, matrix, SIZE[::-1], flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101
    )


def off(found: np.ndarray, true: np.ndarray) -> float:
    """Px by which motions differ, at most, over the image."""
    height, width = SIZE
    corners = [[x, y, 1] for x in (20, width - 20) for y in (20, height - 20)]
    ends = [(one := matrix @ np.array(corners).T)[:2] / one[2] for matrix in (found, true)]
    return float(np.abs(ends[0] - ends[1]).max())


@pytest.mark.parametrize("model", ["translation", "affine", "homography"])
def test_a_motion_is_found_to_a_fraction_of_a_pixel(model: str) -> None:
    """Keeps away: a change along every edge; a matrix of the other direction; a motion that the
    changed object takes along."""
    before, true = picture(1), motion(model)
    after = before.copy()
    after[40:75, 60:100] = (250, 20, 20)
    after = moved(after, true)
    one, other, found = registration.on_one_grid(before, after, Pairs(register=model))  # type: ignore[arg-type]
    assert found is not None
    assert off(found.matrix, true) < 1
    differs = np.abs(one.astype(int) - other).max(axis=2) > 40
    rows, columns = np.nonzero(differs)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == pytest.approx(
        (40, 74, 60, 99), abs=1
    )
    assert 0.85 < found.covered < 1
    assert found.quality > 0.8


def test_a_motion_in_large_images_is_that_of_their_pixels() -> None:
    """Keeps away: a motion of the small images of which it is found, or half a pixel off."""
    before = picture(2).repeat(8, axis=0).repeat(8, axis=1)
    matrix = np.array([[1, 0, 32.0], [0, 1, 16.0], [0, 0, 1]])
    after = cv2.warpPerspective(before, matrix, before.shape[1::-1])
    found = registration.find(before, after, "translation")
    assert found is not None
    assert np.abs(found.matrix - matrix).max() < 0.5


@pytest.mark.parametrize("image", [picture(0), np.zeros((*SIZE, 3), np.uint8)])
def test_equal_images_are_compared_whole(image: np.ndarray) -> None:
    """Keeps away: "1 % of the image has no counterpart" of a file and itself."""
    found = registration.find(image, image.copy(), "homography")
    assert found is not None
    assert found.is_good
    assert found.covered == 1
    assert all(np.array_equal(one, image) for one in found.applied(image, image))


def test_two_places_are_no_pair() -> None:
    """Keeps away: a picture that is bent until it looks like another one."""
    for model in registration.MODELS:
        with pytest.raises(RejectedPair, match=f"no {model} lays the images") as caught:
            registration.on_one_grid(picture(3), picture(4), Pairs(register=model))  # type: ignore[arg-type]
        assert caught.value.reason is Reason.NOT_REGISTERED
    flat = np.full((*SIZE, 3), 90, np.uint8)
    with pytest.raises(RejectedPair, match="nothing of one is found"):
        registration.on_one_grid(flat, flat + 9, Pairs(register="affine"))


def test_two_sizes_are_resized_to_the_smaller() -> None:
    small, large = picture(5), resize(picture(5), (288, 352))
    for pair in ((small, large), (large, small)):
        one, other, _ = registration.on_one_grid(*pair, Pairs(resize=True))
        assert one.shape == other.shape == small.shape
        assert np.abs(one.astype(int) - other).mean() < 2
    with pytest.raises(RejectedPair, match=r"pairs\.resize"):
        registration.on_one_grid(small, large, Pairs(register="affine"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pair that moved, with masks of both sides, and one of two places."""
    before = picture(6)
    after = before.copy()
    after[40:75, 60:100] = (250, 20, 20)
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask[40:75, 60:100] = 255
    true = motion("affine")
    turned = cv2.warpPerspective(mask, true, SIZE[::-1], flags=cv2.INTER_NEAREST)
    files = {
        "before/a": before, "after/a": moved(after, true), "masks_before/a": mask,
        "masks_after/a": turned, "before/b": picture(7), "after/b": picture(8),
    }  # fmt: skip
    for name, pixels in files.items():
        path = tmp_path / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path


def settings(root: Path, *overrides: str) -> Manifest:
    text = "layout: folders\nroot: x\nname: r\nsplits: [train]\npairs: {register: affine}\n"
    base = ["interpolate.method=crossfade", "interpolate.depth=0", "image_size=96"]
    return manifest.build(text, "r.yaml", [*base, *overrides], str(root))


def test_a_job_registers_images_and_masks(root: Path) -> None:
    """Keeps away: a mask that stays where the image was; a pair of two places that is kept."""
    made = settings(root)
    pairs = datasets.pairs(made, "train")
    step = Interpolate(made, {}, "cpu")
    [good, bad] = step.compute(pairs, step.read(pairs))
    assert isinstance(bad, RejectedPair)
    assert bad.reason is Reason.NOT_REGISTERED
    assert not isinstance(good, RejectedPair)
    assert good.registration is not None
    assert off(np.array(good.registration["matrix"]), motion("affine")) < 1
    assert good.mask_before is not None
    assert good.mask_after is not None
    both, either = (
        combined(good.mask_before > 0, good.mask_after > 0).sum()
        for combined in (np.logical_and, np.logical_or)
    )
    assert both > 0.9 * either
    found = inspection.inspect(made, ["train"])
    assert found.rejects == {"not registered": 1}


def test_true_frames_do_not_fit_registered_images(root: Path) -> None:
    with pytest.raises(UserError, match=r"interpolate\.method=truth does not"):
        settings(root, "interpolate.method=truth")


def test_a_pair_is_loaded_as_a_job_reads_it(root: Path) -> None:
    """Keeps away: a program that sees other pixels than the job."""
    made = settings(root, "image_size=null")
    pairs = datasets.pairs(made, "train")
    loaded = datasets.LoadedPairs(made.root, pairs, None, made.image, made.pairs)[0]
    read = Interpolate(made, {}, "cpu").read(pairs[:1])[0]
    assert not isinstance(read, RejectedPair)
    assert np.array_equal(loaded.after, read.after)
    assert not np.array_equal(loaded.after, images.read(str(root / "after/a.png")))
    assert loaded.mask_after is not None
    assert np.array_equal(loaded.mask_after, read.masks.after)
