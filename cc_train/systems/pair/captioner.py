"""The pair captioner: frozen backbone, pair encoder, caption decoder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.layers import caption_decoder
from cc_train.layers.caption_decoder import CaptionDecoder
from cc_train.layers.comparison import Changes, change_bridge, change_kinds, change_tokens
from cc_train.systems.pair import encoder
from cc_train.systems.pair.encoder import PairEncoder
from cc_train.text import TextCodec

BACKBONE = "backbone."


class PairCaptioner(EncoderDecoder):
    """Two images, or their stored features → a sentence.

    backbone: frozen, and no part of `state_dict`: a run has it as a file, so that images need no
    shards. digest: SHA-256 of its weights, by which stored features are checked. attend_grid: the
    decoder sees the differences at every place besides their summaries.
    """

    def __init__(
        self,
        backbone: nn.Module,
        digest: str,
        size: tuple[int, int],
        config: encoder.Config,
        decoder: caption_decoder.Config,
        text: TextCodec,
        attend_grid: bool = True,
    ) -> None:
        super().__init__(Inputs(size, "features", backbone=digest), text, decoder.length)
        self._frozen = (backbone.requires_grad_(False),)  # in a tuple, so that it is no submodule
        self.encoder = PairEncoder(config)
        self.attend_grid = attend_grid
        self.bridge = change_bridge(config.width, decoder.width)
        self.kinds = change_kinds(decoder.width)
        self.decoder = CaptionDecoder(decoder)

    @property
    def backbone(self) -> nn.Module:
        """The frozen network whose features are compared."""
        return self._frozen[0]

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads weights. Checkpoints from before the backbone was a file hold it as well."""
        own = {name: t for name, t in state_dict.items() if not name.startswith(BACKBONE)}
        return super().load_state_dict(own, *args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.backbone._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def prepare(self, before_after: Tensor) -> Tensor:
        """The features: the backbone runs once."""
        return self.features(before_after)

    def features(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w] of images uint8 [B, 2, H, W, 3], or of stored ones."""
        if before_after.dtype != torch.uint8:
            return before_after.float()
        pixels = before_after.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
            features: Tensor = self.backbone(pixels)
        return features.unflatten(0, before_after.shape[:2])

    def changes(self, before_after: Tensor) -> Changes:
        """What is seen of pairs."""
        features = self.features(before_after)
        images = self.encoder.images(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        changes: Changes = self.encoder(images[:, 0], images[:, 1])
        return changes

    @torch.inference_mode()
    def strangeness(self, before_after: Tensor) -> list[float | None]:
        """Of each pair that of the stranger image: how far the means of its channels lie from those
        of the training images, in their deviations, squared and averaged over channels.
        """
        features = self.features(before_after)
        means = (features.mean((3, 4)) - self.encoder.mean) / self.encoder.spread
        distances: list[float | None] = means.square().mean(2).amax(1).tolist()
        return distances

    def attended(self, changes: Changes) -> Tensor:
        """What the decoder attends to, [B, N, width]."""
        positions = self.encoder.position if self.attend_grid else None
        return change_tokens(changes, positions, self.bridge, self.kinds)

    def memory(self, before_after: Tensor) -> Tensor:
        """See `EncoderDecoder`."""
        return self.attended(self.changes(before_after))

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Of the next word at each position, [B, L, words]."""
        logits: Tensor = self.decoder(ids, memory)
        return logits

    def next_word(self) -> CachedDecoder:
        """The decoder with kept keys and values."""
        return CachedDecoder(self.decoder)

    def train(self, mode: bool = True) -> Any:
        """The backbone stays in evaluation."""
        super().train(mode)
        self.backbone.eval()
        return self
