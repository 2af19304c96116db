"""Frames → grid features of a frozen backbone, which trainings then need not compute."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones
from cc_prep.models.cpu import image_by_image, use_kernels
from cc_prep.steps.base import Multiple, check_divisible
from cc_prep.weights import Located


class FeatureExtractor:
    """Runs a backbone on sequences: on a GPU several frames together, on a CPU one at a time.

    Float sums depend on the batch size, so on a CPU it is always one. There an image that the call
    before had, such as the first one of both pairs of a scene, is not computed again.

    Args:
        name: Of the backbone.
        precision: Of the values, `float16` or `float32`.
        mirrored: The features of each mirrored image are computed as well.
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
        self.file, self.device, self.mirrored = file, device, mirrored
        self.dtype: torch.dtype = getattr(torch, precision)
        self.network = use_kernels(network.to(device).eval())
        self.multiple = backbones.multiple(name, network)
        self.name, self.sha256, self.preprocessing = backbones.identity(name, network, file.sha256)
        self._known: dict[bytes, np.ndarray] = {}  # of the images of the sequence before

    def __call__(self, frames: np.ndarray, numbers: Sequence[int]) -> Features:
        """Features of some frames, by number, of uint8 [F, H, W, 3].

        Raises:
            RejectedPair: If a side is not divisible by the backbone's `multiple`.
        """
        check_divisible(frames.shape[1:3], Multiple.of_features(self.multiple))
        chosen = sorted(set(numbers))
        images = frames[chosen]
        values = self._computed(images) if self.device != "cpu" else self._looked_up(images)
        mirrored = values[:, 1] if self.mirrored else None
        return Features(
            self.name, self.sha256, tuple(chosen), values[:, 0], mirrored, self.preprocessing
        )

    def _looked_up(self, images: np.ndarray) -> np.ndarray:
        """As `_computed`, but only for images that the call before did not have."""
        keys = [hashlib.sha256(f"{image.shape}".encode() + image.tobytes()).digest()
                for image in images]  # fmt: skip
        new = {key: n for n, key in enumerate(keys) if key not in self._known}
        values = self._computed(images[[*new.values()]]) if new else ()
        known = {**self._known, **dict(zip(new, values, strict=True))}
        self._known = {key: known[key] for key in keys}
        return np.stack([known[key] for key in keys])

    @torch.inference_mode()
    def _computed(self, images: np.ndarray) -> np.ndarray:
        """Features [N, 1 or 2, channels, h, w] of images uint8 [N, H, W, 3]; 2: also mirrored."""
        pixels = torch.tensor(images, device=self.device).permute(0, 3, 1, 2).float() / 255
        ways = [pixels, pixels.flip(3)] if self.mirrored else [pixels]
        values = image_by_image(self.network, torch.cat(ways)).to(self.dtype)
        return values.unflatten(0, (len(ways), len(images))).transpose(0, 1).cpu().numpy()
