"""Frames and captions through CLIP4IDC: what a sequence's scores are made of.

Source: spec of CLIP4IDC: images go by bicubic interpolation straight to the network's square, no
centre crop, and are normalised with CLIP's mean and deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cc_prep.media.images import resize
from cc_prep.models import clip_tokenizer
from cc_prep.models.clip import MEAN, STD
from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.records import FrameScores


def normalize(images: Sequence[np.ndarray] | np.ndarray, resolution: int) -> Tensor:
    """Images uint8 [H, W, 3] each → float32 [N, 3, R, R] as CLIP wants them."""
    square = np.stack([resize(image, resolution) for image in images])
    pixels = torch.tensor(square).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


class FrameScorer:
    """A CLIP4IDC at work on sequences.

    A sequence goes through alone, whatever runs beside it: float sums differ between batch sizes.
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
                ids = clip_tokenizer.batch(
                    captions, min(clip_tokenizer.CONTEXT, network.config.context)
                )
                text = network.encode_text(torch.tensor(ids, device=self.device))
                bef, aft = network.score_tokens(tokens, text)
        arrays = (x.float().cpu().numpy() for x in (bef, aft, bef_visual, aft_visual))
        return FrameScores(tuple(captions), *arrays)
