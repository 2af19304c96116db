"""The procedure encoder's input for a frame, by frozen networks.

`pixels`: the output of the VQGAN's encoder before quantisation, as in the paper. `tokens`: the
codebook vectors of the frame's indices: training shards hold these, so no convolution runs in
training. `features`: a frozen backbone's, which training shards hold as well.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from cc_prep.models.cpu import image_by_image, use_kernels
from cc_prep.models.vqgan import VQGAN
from cc_prep.steps.tokenization import indices_of
from cc_train.data.collate import FeatureSource, Reads
from cc_train.layers.feature_grid import Pooling, fold, to_grid
from cc_train.layers.frozen_backbone import FrozenBackbone

RGB = 3  # channels of an image, and of no backbone


class BackboneFeatures(nn.Module):
    """Images, or their stored features → features float32 [N, n, channels] on the tokens' grid.

    Args:
        grid: Rows and columns of a frame's tokens.

    Raises:
        UserError: Unless those of the features are divisible by them.
    """

    def __init__(self, frozen: FrozenBackbone, grid: tuple[int, int], pooling: Pooling) -> None:
        super().__init__()
        self.frozen, self.grid, self.pooling = frozen, grid, pooling
        channels, rows, columns = frozen.spec.grid
        factor = fold((rows, columns), grid)
        self.channels: int = channels * (factor**2 if pooling == "unshuffle" else 1)

    def on_grid(self, features: Tensor) -> Tensor:
        """Stored features, float32 [N, channels, rows, columns], pooled to the tokens' grid.

        Raises:
            UserError: For features of another size.
        """
        self.frozen.check(features.shape[1:])
        # What is rearranged only is made float32 afterwards: half of the memory is moved.
        exact = features if self.pooling == "unshuffle" else features.float()
        return to_grid(exact, self.grid, self.pooling).float()

    def forward(self, frames: Tensor) -> Tensor:
        """Features float32 [N, n, channels] on the tokens' grid.

        Args:
            frames: Images float32 [N, 3, H, W] in [0, 1], or stored features [N, C, h, w].
        """
        stored = frames.shape[1] != RGB
        features = frames if stored else self.frozen.compute(frames)
        tokens = self.on_grid(features).flatten(2).transpose(1, 2)
        return tokens.contiguous()  # once here, and not again in the norm and in the linear layer


class FrameFeatures(nn.Module):
    """Frames → features float32 [B, T, n, channels]. The networks are frozen.

    They run outside autocast, so training, validation and evaluation see the same features.

    Args:
        reference_quirks: Images go into the encoder in [0, 1] and not as 2x − 1, as in the
            reference; the indices are made from 2x − 1 in either case.
        cache_mb: On a CPU, so many MB of features are cached, since the VQGAN never changes, and a
            step has most images twice. There each image goes through it alone: float sums depend on
            the batch size, and a resumed run has other images in its cache.
        backbone: Only for `features`.
    """

    def __init__(
        self,
        vqgan: VQGAN,
        kind: Reads,
        reference_quirks: bool = False,
        cache_mb: int = 0,
        backbone: BackboneFeatures | None = None,
    ) -> None:
        super().__init__()
        assert (kind == "features") == (backbone is not None)
        self.vqgan, self.kind, self.reference_quirks = vqgan, kind, reference_quirks
        self.cache_mb, self.backbone = cache_mb, backbone
        self._cache: OrderedDict[bytes, Tensor] = OrderedDict()
        use_kernels(self.requires_grad_(False))

    @property
    def channels(self) -> int:
        """Channels of the features."""
        if self.backbone is not None:
            return self.backbone.channels
        config = self.vqgan.config
        return config.latent if self.kind == "pixels" else config.code_width

    @property
    def source(self) -> FeatureSource | None:
        """Backbone of the features; None for the other kinds."""
        return None if self.backbone is None else self.backbone.frozen.spec.source

    def train(self, mode: bool = True) -> FrameFeatures:
        """Stays in evaluation mode: these networks never train."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> FrameFeatures:
        return self  # frozen: an average of the network beside it shares it

    @torch.no_grad()
    def forward(self, frames: Tensor) -> Tensor:
        """Features float32 [B, T, n, channels].

        Args:
            frames: Images [B, T, 3, H, W] in [0, 1]; or indices int64 [B, T, n] for `tokens`,
                stored features float16 or float32 [B, T, C, h, w] for `features`.
        """
        if self.kind == "tokens":
            indices = frames if frames.ndim == 3 else self.indices(frames)
            vectors: Tensor = self.vqgan.quantize.embedding(indices)
            return vectors
        flat = frames.flatten(0, 1)
        if self.backbone is not None:
            seen: Tensor = self.backbone(flat)
            return seen.unflatten(0, frames.shape[:2])
        with torch.autocast(frames.device.type, enabled=False):
            features = self._through_cache(flat) if flat.is_cpu else self._encoded(flat)
        return features.unflatten(0, frames.shape[:2])

    def _encoded(self, images: Tensor) -> Tensor:
        """Features [N, n, channels] of images [N, 3, H, W]."""
        encode = self.vqgan.encoder if self.reference_quirks else self.vqgan.features
        return image_by_image(encode, images).flatten(2).transpose(1, 2)

    def _through_cache(self, images: Tensor) -> Tensor:
        """The result of `_encoded`; features of recent images are taken from the cache."""
        keys = [hashlib.blake2b(i.numpy().tobytes(), digest_size=16).digest() for i in images]
        new = {
            key: image for key, image in zip(keys, images, strict=True) if key not in self._cache
        }
        encoded = self._encoded(torch.stack([*new.values()])) if new else ()
        # Copies: a view would keep all of its batch in the cache.
        features = {**self._cache, **dict(zip(new, map(Tensor.clone, encoded), strict=True))}
        self._remember({key: features[key] for key in keys})
        return torch.stack([features[key] for key in keys])

    def _remember(self, recent: dict[bytes, Tensor]) -> None:
        """Puts features into the cache, and drops the oldest ones."""
        for key, features in recent.items():
            self._cache.pop(key, None)
            self._cache[key] = features
            while len(self._cache) * features.nbytes > self.cache_mb * 1e6:
                self._cache.popitem(last=False)

    @torch.no_grad()
    def indices(self, images: Tensor) -> Tensor:
        """Codebook indices int64 [B, T, n] of images [B, T, 3, H, W] in [0, 1]."""
        with torch.autocast(images.device.type, enabled=False):
            indices = indices_of(self.vqgan, images.flatten(0, 1))
        return indices.flatten(1).unflatten(0, images.shape[:2])


def as_input(frames: Tensor) -> Tensor:
    """Images uint8 [B, T, H, W, 3] → [B, T, 3, H, W] in [0, 1]; others are returned unchanged."""
    if frames.dtype == torch.uint8:
        return frames.movedim(-1, 2).float() / 255
    return frames if frames.is_floating_point() else frames.long()
