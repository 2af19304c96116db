"""What the procedure encoder sees of a frame, by a frozen VQGAN.

`pixels`: the encoder's output before quantisation, as in the paper. `tokens`: the codebook vectors
of the frame's indices: training shards hold these, so no convolution runs in training.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from cc_prep.models.vqgan import VQGAN

Kind = Literal["pixels", "tokens"]


class FrameFeatures(nn.Module):
    """Frames → features [B, T, n, channels]. The VQGAN is frozen.

    compatible: images go into the encoder in [0, 1] and not as 2x − 1, as the reference does; the
    indices are made of 2x − 1 in either case. cache_mb: on a CPU, features of so many MB are kept,
    since the VQGAN never changes, and a step has most images twice. Each image goes through it
    alone there: several fall out of the processor's caches, and float sums differ between batch
    sizes, while a resumed run has seen other images before.
    """

    def __init__(
        self, vqgan: VQGAN, kind: Kind, compatible: bool = False, cache_mb: int = 0
    ) -> None:
        super().__init__()
        self.vqgan, self.kind, self.compatible = vqgan, kind, compatible
        self.cache_mb = cache_mb
        self._kept: OrderedDict[bytes, Tensor] = OrderedDict()
        self.vqgan.requires_grad_(False)

    @property
    def channels(self) -> int:
        """Channels of the features."""
        config = self.vqgan.config
        return config.latent if self.kind == "pixels" else config.code_width

    def train(self, mode: bool = True) -> FrameFeatures:
        """Never trains."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, frames: Tensor) -> Tensor:
        """frames: images [B, T, 3, H, W] in [0, 1], or indices int64 [B, T, n] for `tokens`."""
        if self.kind == "tokens":
            indices = frames if frames.ndim == 3 else self.indices(frames)
            found: Tensor = self.vqgan.quantize.embedding(indices)
            return found
        flat = frames.flatten(0, 1)
        if flat.device.type == "cpu":
            return torch.stack([self._of(image) for image in flat]).unflatten(0, frames.shape[:2])
        return self._encoded(flat).unflatten(0, frames.shape[:2])

    def _encoded(self, images: Tensor) -> Tensor:
        maps = self.vqgan.encoder(images) if self.compatible else self.vqgan.features(images)
        return maps.flatten(2).transpose(1, 2)

    def _of(self, image: Tensor) -> Tensor:
        """Features [n, channels] of an image, from the cache where it was seen lately."""
        key = hashlib.blake2b(image.numpy().tobytes(), digest_size=16).digest()
        found = self._kept.pop(key, None)
        if found is None:
            found = self._encoded(image[None])[0]
        self._kept[key] = found
        if len(self._kept) * found.nbytes > self.cache_mb * 1e6:
            self._kept.popitem(last=False)
        return found

    @torch.no_grad()
    def indices(self, images: Tensor) -> Tensor:
        """Codebook indices int64 [B, T, n] of images [B, T, 3, H, W] in [0, 1]."""
        return self.vqgan.indices(images.flatten(0, 1)).flatten(1).unflatten(0, images.shape[:2])
