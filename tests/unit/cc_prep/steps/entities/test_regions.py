"""Vectors of regions: what they depend on, and what an image tower is shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.formats.changes import FoundChange, Region
from cc_prep.manifest import Entities
from cc_prep.steps.entities import regions, texts
from cc_prep.weights.folders import locate_folder
from tests.pair_factory import composite
from tests.weight_factory import write_clip


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("weights") / "clip")


def change(mask: np.ndarray, *boxes: tuple[int, int, int, int]) -> FoundChange:
    records = [Region(box, (0.0, 0.0), 1, 1.0, 1.0, 1.0, True) for box in boxes]
    return FoundChange(*mask.shape, "fill", tuple(records), mask)


def test_a_region_is_what_is_marked_in_its_box() -> None:
    """Keeps away: vectors of the union, in which each region has the colours of all others."""
    mask = np.zeros((40, 60), bool)
    mask[2:10, 3:9] = mask[20:30, 40:50] = True
    ours = regions.region_masks(change(mask, (3, 2, 9, 10), (40, 20, 50, 30), (0, 30, 5, 35)), 3)
    assert [one.sum() for one in ours] == [48, 100, 25]
    assert not (ours[0] & ours[1]).any()
    assert len(regions.region_masks(change(mask, (3, 2, 9, 10), (40, 20, 50, 30)), 1)) == 1


ENCODERS = ["lab", "efficientnet-lite0"]


@pytest.mark.parametrize("features", ENCODERS)
def test_vectors_see_their_region_alone(features: str) -> None:
    """Keeps away: a background that decides which regions are alike."""
    file = weights.locate(features) if features != "lab" else None
    settings = Entities.model_validate({"features": features})
    encoder = regions.make(settings, file, "cpu")
    pair = composite(5)
    masks = np.stack([pair.mask, ~pair.mask])
    vectors = encoder(pair.after, masks)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1], abs=1e-5)
    assert vectors[0] @ vectors[1] < 0.95
    elsewhere = pair.after.copy()
    elsewhere[:20, :20] = 0
    assert not pair.mask[:40, :40].any()
    unmoved = encoder(elsewhere, masks)
    assert vectors[0] @ unmoved[0] > 0.999


def test_views_of_clip() -> None:
    """Keeps away: a region that is cut off, and black surroundings where the mean was meant."""
    image = np.full((60, 80, 3), 200, np.uint8)
    mask = np.zeros((60, 80), bool)
    mask[20:30, 30:50] = True
    image[mask] = (10, 120, 40)
    crop = regions.view(image, mask, "crop", 0.2)
    assert crop.shape == (12, 24, 3)
    assert np.array_equal(crop, image[19:31, 28:52])
    dimmed = regions.view(image, mask, "dimmed", 2.0)
    assert dimmed.shape == (30, 60, 3)
    inside = (dimmed == (10, 120, 40)).all(axis=2)
    assert inside.sum() == mask.sum()
    mean = image.reshape(-1, 3).mean(axis=0)
    assert np.abs(dimmed[0, 0] - mean).max() < 2
    masked = regions.view(image, mask, "masked", 0.2)
    assert masked.shape == image.shape
    assert masked[0, 0].tolist() == [0, 0, 0]


def test_clip_from_a_folder(clip_folder: Path) -> None:
    """Keeps away: vectors before the projection, texts padded apart, and texts that are all one."""
    located = locate_folder(str(clip_folder), "clip")
    settings = Entities(retriever="clip", weights=str(clip_folder))
    encoder = regions.make(settings, located, "cpu")
    pair = composite(5)
    ours = encoder(pair.after, np.stack([pair.mask, ~pair.mask]))
    assert ours.shape == (2, 16)
    phrases = ["red cube", "green ball", "a blue car and a red cube"]
    vectors = texts.encode(phrases, located, "a photo of a {}", "cpu")
    assert vectors.shape == (3, 16)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1, 1], abs=1e-5)
    alone = texts.encode(phrases[:1], located, "a photo of a {}", "cpu")
    assert alone[0] == pytest.approx(vectors[0], abs=1e-5)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    assert texts.encode([], located, "{}", "cpu").shape == (0, 16)


def test_another_model_is_named(clip_folder: Path, tmp_path: Path) -> None:
    """Keeps away: a folder of CLIP taken for SAM, and a name that would be fetched."""
    with pytest.raises(UserError, match="of the type clip, not sam"):
        locate_folder(str(clip_folder), "sam")
    with pytest.raises(UserError, match="none is downloaded"):
        locate_folder("openai/clip-vit-base-patch32", "clip")
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(UserError, match="no CLIP can be loaded") as caught:
        regions.load_clip(locate_folder(str(tmp_path), "clip"), "cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_is_known_by_its_tensors(clip_folder: Path, tmp_path: Path) -> None:
    """Keeps away: two fine-tuned models of one folder name that are taken for the same."""
    copy = tmp_path / clip_folder.name
    copy.mkdir()
    for file in clip_folder.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    one, other = (locate_folder(str(folder), "clip") for folder in (clip_folder, copy))
    assert (one.name, one.sha256) == (other.name, other.sha256)
    (copy / "README.md").write_text("a note")
    assert locate_folder(str(copy), "clip").sha256 == one.sha256
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    assert locate_folder(str(copy), "clip").sha256 != one.sha256
