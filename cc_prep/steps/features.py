"""Frames → grid features of a frozen backbone, which trainings then need not compute."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from cc_prep.errors import Reason, RejectedPair
from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones
from cc_prep.models.cpu.convolution import image_by_image
from cc_prep.weights import Located


class FeatureExtractor:
    """Runs a backbone on sequences: on a GPU several frames together, on a CPU one at a time.

    Float sums depend on the batch size, so on a CPU it is always one. name: of the backbone.
    precision: of the values, `float16` or `float32`. mirrored: the features of each mirrored image
    are computed as well.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        file: Located,
        device: str = "cpu",
        precision: str = "float16",
        mirrored: bool = False,
    ) -> None:
        self.name, self.file, self.device, self.mirrored = name, file, device, mirrored
        self.dtype: torch.dtype = getattr(torch, precision)
        self.network = network.to(device).eval()
        self.multiple = backbones.multiple(name, network)

    def __call__(self, frames: np.ndarray, numbers: Sequence[int]) -> Features:
        """Features of some frames, by number, of uint8 [F, H, W, 3].

        Raises RejectedPair if a side is not divisible by the backbone's `multiple`.
        """
        height, width = frames.shape[1:3]
        if height % self.multiple or width % self.multiple:
            raise RejectedPair(
                Reason.SIZE_NOT_DIVISIBLE,
                f"{width}×{height} px: not divisible by {self.multiple} px, as the backbone needs "
                "it; set image_size",
            )
        chosen = sorted(set(numbers))
        pixels = torch.tensor(frames[chosen], device=self.device).permute(0, 3, 1, 2).float() / 255
        mirrored = self._values(pixels.flip(3)) if self.mirrored else None
        return Features(self.name, self.file.sha256, tuple(chosen), self._values(pixels), mirrored)

    @torch.inference_mode()
    def _values(self, pixels: torch.Tensor) -> np.ndarray:
        """Features [N, channels, h, w] of images float32 [N, 3, H, W] in [0, 1]."""
        values: np.ndarray = image_by_image(self.network, pixels).to(self.dtype).cpu().numpy()
        return values
