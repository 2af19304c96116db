"""Scores of a sequence: its frames and captions through CLIP4IDC.

As in CLIP4IDC, images are resized to the network's square by bicubic interpolation, without a
centre crop, and normalised with CLIP's mean and standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cc_prep.media.images import resize
from cc_prep.models import clip
from cc_prep.models.clip import MEAN, STD
from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.records import FrameScores


def normalize(images: Sequence[np.ndarray] | np.ndarray, resolution: int) -> Tensor:
    """Images uint8 [H, W, 3] each → float32 [N, 3, R, R], CLIP's input."""
    square = np.stack([resize(image, resolution) for image in images])
    pixels = torch.tensor(square).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


class FrameScorer:
    """Runs a CLIP4IDC on sequences, one at a time, since float sums depend on the batch size.

    A sequence's scores therefore depend on that sequence alone.
    """

    def __init__(self, network: CLIP4IDC, device: str = "cpu") -> None:
        self.network, self.device = network.to(device).eval(), device

    def __call__(self, frames: np.ndarray, captions: Sequence[str]) -> FrameScores:
        """Scores of frames uint8 [F, H, W, 3], before first and after last."""
        network, count = self.network, len(frames)
        images = normalize(frames, network.config.resolution).to(self.device)
        with torch.inference_mode():
            tokens = network.visual.encode_frames(images)
            bef_visual, aft_visual = network.image_similarity(tokens)
            bef = aft = torch.zeros((0, count))
            if captions:
                ids = clip.tokenize(captions, network.config.caption_tokens)
                text = network.encode_text(torch.tensor(ids, device=self.device))
                bef, aft = network.score_tokens(tokens, text)
        arrays = (x.float().cpu().numpy() for x in (bef, aft, bef_visual, aft_visual))
        return FrameScores(tuple(captions), *arrays)
