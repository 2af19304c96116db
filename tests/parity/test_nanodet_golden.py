"""Our NanoDet gives what the graph of the package gives that its weights are from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cc_prep import weights
from cc_prep.models.nanodet import CLASSES, STRIDES, NanoDet
from tests.conftest import golden
from tests.parity.make_nanodet_golden import inputs


@pytest.mark.parametrize("folder", golden("nanodet"), ids=lambda folder: folder.name)
@torch.inference_mode()
def test_same_scores_and_distances(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    network = NanoDet.from_tensors(weights.read_tensors(weights.locate("nanodet").path))
    batch = torch.from_numpy(inputs()).permute(0, 3, 1, 2).float() / 255
    outputs = torch.cat(network.outputs(batch), dim=1)[:, :: meta["every"]]
    with np.load(folder / "io.npz") as arrays:
        scores, distances = (torch.from_numpy(arrays[name]) for name in ("scores", "distances"))
    assert len(scores) == 2
    assert scores.max() > 0.1, "the golden images show nothing"
    own = outputs[..., : len(CLASSES)].sigmoid()
    assert torch.allclose(own, scores, atol=meta["tolerance"])
    assert torch.allclose(outputs[..., len(CLASSES) :], distances, atol=20 * meta["tolerance"])


def test_boxes_cover_their_places() -> None:
    network = NanoDet().eval()
    scores, boxes = network(torch.rand(1, 3, 96, 128))
    places = sum(96 // stride * 128 // stride for stride in STRIDES)
    assert scores.shape == (1, places, len(CLASSES))
    assert boxes.shape == (1, places, 4)
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    # The first place of the finest stride is the top left one, the last of the coarsest the other.
    assert (boxes[0, 0, :2] < 4).all()
    assert (boxes[0, -1, 2:] > torch.tensor((112, 80))).all()
