"""The two networks of `photos-mini` as graphs. What is made of their outputs is not in them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cc_prep.media import images
from cc_prep.models.nanodet import CLASSES, NanoDet
from cc_train.sharing.onnx_graph import Graph, Graphs
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.systems.photos.captioner import PhotoCaptioner


class _Comparison(nn.Module):
    """Images uint8 [B, 2, H, W, 3] RGB → chances of the types of change, and maps of the place."""

    def __init__(self, comparison: PairTrunk) -> None:
        super().__init__()
        self.trunk, self.network = comparison, comparison.backbone.network
        self.types = len(comparison.encoder.vocabulary.types)
        _, self.rows, self.columns = comparison.backbone.spec.grid

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pixels = pairs.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        assert self.network is not None
        features = self.network(pixels).to(getattr(torch, self.trunk.backbone.spec.precision))
        features = features.float().view(pairs.shape[0], 2, *features.shape[1:])
        changes = self.trunk.encoder.changes(features)
        before, after = (
            logits.softmax(1).view(-1, self.rows, self.columns)
            for logits in (changes.before, changes.after)
        )
        return changes.facts[:, : self.types].softmax(1), before, after


class _Detector(nn.Module):
    """Images uint8 [N, H, W, 3] RGB → scores [N, places, classes] and boxes [N, places, 4], px."""

    def __init__(self, detector: NanoDet) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        scores, boxes = self.detector(pictures.permute(0, 3, 1, 2).float() / 255)
        return scores, boxes


def of(captioner: PhotoCaptioner, pairs: Tensor) -> Graphs:
    """The graphs of a captioner, and the names of what they tell apart.

    Args:
        pairs: Examples, uint8 [B, 2, H, W, 3].
    """
    comparison = captioner.comparison
    size = comparison.inputs.size
    small = np.stack([[images.resize(one, size) for one in pair] for pair in pairs.numpy()])
    about = {
        "comparison_size": list(size),
        "detector_size": list(captioner.inputs.size),
        "types": list(comparison.encoder.vocabulary.types),
        "classes": list(CLASSES),
    }
    return Graphs(
        {
            "comparison": Graph(
                _Comparison(comparison).eval(),
                {"pairs": torch.from_numpy(small)},
                ("chances", "before", "after"),
            ),
            "detector": Graph(
                _Detector(captioner.detector).eval(), {"images": pairs[:3, 0]}, ("scores", "boxes")
            ),
        },
        about,
    )
