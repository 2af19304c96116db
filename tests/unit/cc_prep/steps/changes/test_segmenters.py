"""Segmenters: what `fill` closes and fills, and SAM on a tiny random network from a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from cc_prep.errors import UserError
from cc_prep.manifest import Changes
from cc_prep.steps import changes
from cc_prep.steps.changes.clustering import Cluster
from cc_prep.steps.changes.segmenters import Sam, filled, make
from cc_prep.weights.folders import locate_folder
from tests import weight_factory
from tests.pair_factory import composite
from tests.weight_factory import write_sam


@pytest.fixture(scope="module")
def sam_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sam(tmp_path_factory.mktemp("weights") / "sam")


def test_holes_are_filled_and_gaps_closed() -> None:
    """Keeps away: objects whose inside looks like the ground marked as rings."""
    ring = np.zeros((30, 30), bool)
    ring[5:20, 5:20] = True
    ring[8:17, 8:17] = False
    ring[5:9, 12] = False  # a gap of a pixel
    whole = filled(ring)
    assert whole[8:17, 8:17].all()
    assert whole[7:9, 12].all()


def cluster(shape: tuple[int, int], y0: int, x0: int, y1: int, x1: int) -> Cluster:
    pixels = np.zeros(shape, bool)
    pixels[y0:y1, x0:x1] = True
    return Cluster(pixels, 1.0)


def test_sam_from_a_folder(sam_folder: Path) -> None:
    """Keeps away: masks in SAM's own size, x and y exchanged, or of one image alone."""
    images = np.random.default_rng(0).integers(0, 256, (2, 90, 120, 3), dtype=np.uint8)
    boxes = [cluster((90, 120), 10, 20, 40, 60), cluster((90, 120), 50, 5, 80, 70)]
    located = locate_folder(str(sam_folder), "sam")
    segmenter = Sam(located, "cpu")
    masks = segmenter.segment(list(images), boxes)
    assert (masks.shape, masks.dtype) == ((2, 2, 90, 120), np.bool_)
    assert np.array_equal(masks, segmenter.segment(list(images), boxes))
    # An image's masks do not depend on the image beside it.
    for number in range(2):
        alone = segmenter.segment([images[number]] * 2, boxes)
        assert (alone[0] == masks[number]).mean() > 0.999


def test_sam_is_asked_with_box_and_centre(
    sam_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keeps away: prompts in the image's pixels where SAM wants those of its resized input."""
    segmenter = make(Changes(segmenter="sam"), locate_folder(str(sam_folder), "sam"), "cpu")
    assert isinstance(segmenter, Sam)
    prompts = {}
    original = segmenter.model.forward

    def forward(**inputs: object) -> object:
        prompts.update(inputs)
        return original(**inputs)

    monkeypatch.setattr(segmenter.model, "forward", forward)
    image = np.zeros((128, 128, 3), np.uint8)
    segmenter.segment([image, image], [cluster((128, 128), 32, 16, 64, 96)])
    scale = 64 / 128  # the tiny network's input is 64 px
    expected = [16 * scale, 32 * scale, 96 * scale, 64 * scale]
    assert prompts["input_boxes"].tolist() == [[expected]] * 2
    assert prompts["input_points"].tolist() == [[[[55.5 * scale, 47.5 * scale]]]] * 2
    assert prompts["input_labels"].tolist() == [[[1]]] * 2
    assert prompts["multimask_output"] is False


def test_sam_in_the_whole_step(sam_folder: Path) -> None:
    """Keeps away: a random SAM, whose masks fit nothing, that leaves a changed pair unmarked."""
    pair = composite(7)
    settings = Changes(segmenter="sam", weights=str(sam_folder))
    segmenter = make(settings, locate_folder(str(sam_folder), "sam"), "cpu")
    change = changes.find(pair.before, pair.after, settings, segmenter)
    assert change.method == "sam"
    assert change.mask is not None
    assert len(change.regions) == 1


def test_a_broken_download_gets_one_line(sam_folder: Path, tmp_path: Path) -> None:
    """Keeps away: a traceback of safetensors, whose error is of none of Python's types."""
    for file in sam_folder.iterdir():
        data = file.read_bytes()
        half = file.suffix == ".safetensors"
        (tmp_path / file.name).write_bytes(data[: len(data) // 2] if half else data)
    with pytest.raises(UserError, match="no SAM can be loaded") as caught:
        Sam(locate_folder(str(tmp_path), "sam"), "cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_without_tensors_gets_one_line(sam_folder: Path, tmp_path: Path) -> None:
    """Keeps away: a traceback of transformers for a folder of which the weights are missing."""
    for name in ("config.json", "preprocessor_config.json", "processor_config.json"):
        if (sam_folder / name).exists():
            (tmp_path / name).write_bytes((sam_folder / name).read_bytes())
    with pytest.raises(UserError, match="no SAM can be loaded") as caught:
        Sam(locate_folder(str(tmp_path), "sam"), "cpu")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_tensor_is_refused(sam_folder: Path, tmp_path: Path) -> None:
    """Keeps away: masks of a network that is random in part, of which transformers only warns."""
    folder = Path(shutil.copytree(sam_folder, tmp_path / "sam"))
    name = weight_factory.lose_tensor(folder, "mlp")
    with pytest.raises(UserError, match=f"{name} of its SamModel is not there, the first of 1 "):
        Sam(locate_folder(str(folder), "sam"), "cpu")
