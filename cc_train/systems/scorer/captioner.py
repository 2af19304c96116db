"""SCORER: two images → a sentence, by what differs once each is told from the other.

Names of tensors follow the public code's checkpoint: `change_detector` and `speaker`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cc_prep.errors import UserError
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.layers import frozen_backbone
from cc_train.layers.feature_grid import Standardise, to_grid
from cc_train.systems.scorer import decoder, encoder
from cc_train.systems.scorer.cached_decoder import CachedSpeaker, Words
from cc_train.systems.scorer.decoder import Speaker
from cc_train.systems.scorer.encoder import ChangeDetector
from cc_train.text import TextCodec

NO_BACKBONE = "Give shards with features, or --backbone-weights to cc-train import-scorer"


class Frozen(nn.Module):
    """A backbone that is never trained nor stored with the network.

    network: None where only its stored features can be read. known: its name, its SHA-256 (None
    where any is taken) and its features' `grid` (channels, rows, columns).
    """

    def __init__(self, network: nn.Module | None, known: Mapping[str, Any]) -> None:
        super().__init__()
        self.network, self.known = network, dict(known)
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Frozen:
        """Never trains."""
        return super().train(False)

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self  # an average of the network beside it shares it

    def forward(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w] of images uint8 [B, 2, H, W, 3], or of stored ones.

        Raises UserError for images where there is no network, and for features of another size.
        """
        features = before_after
        if before_after.dtype == torch.uint8:
            if self.network is None:
                raise UserError(
                    f"this captioner has no weights of {self.known['name']} for images", NO_BACKBONE
                )
            pixels = before_after.flatten(0, 1).permute(0, 3, 1, 2).float() / 255
            features = frozen_backbone.compute(self.network, self.known, pixels)
            features = features.unflatten(0, before_after.shape[:2])
        if list(features.shape[2:]) != list(self.known["grid"]):
            raise UserError(
                f"features of the shape {list(features.shape[2:])}, where those of "
                f"{list(self.known['grid'])} are wanted",
                "Build all shards with one backbone and one image_size",
            )
        return features.float()


class Scorer(EncoderDecoder):
    """Two images, or their stored features → a sentence.

    frozen: no part of the network's tensors. standardise: channels of the features are standardised
    first, which the public code does not do.
    """

    def __init__(
        self,
        frozen: Frozen,
        size: tuple[int, int],
        sizes: encoder.Config,
        words: decoder.Config,
        text: TextCodec,
        standardise: bool = False,
    ) -> None:
        inputs = Inputs(size, "features", backbone=frozen.known["sha256"])
        super().__init__(inputs, text, words.length)
        self._frozen = (frozen,)  # in a tuple, so that it is no submodule
        self.standardise = Standardise(sizes.channels) if standardise else None
        self.change_detector = ChangeDetector(sizes)
        self.speaker = Speaker(words)

    @property
    def frozen(self) -> Frozen:
        """The backbone."""
        return self._frozen[0]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of what the decoder attends to."""
        return self.change_detector.config.rows, self.change_detector.config.columns

    def pooled(self, features: Tensor) -> Tensor:
        """A backbone's features [N, C, h, w] on the grid of the decoder, float32."""
        return to_grid(features.float(), self.grid, "mean")

    def features(self, before_after: Tensor) -> tuple[Tensor, Tensor]:
        """Features of before and after, float32 [B, C, rows, columns] each, as the encoder reads
        them; before_after as `CaptionModel.caption` takes it. Raises UserError for other sizes.
        """
        features = self.frozen(before_after)
        pooled = self.pooled(features.flatten(0, 1))
        if self.standardise is not None:
            pooled = self.standardise(pooled.movedim(1, -1)).movedim(-1, 1)
        before, after = pooled.unflatten(0, features.shape[:2]).unbind(1)
        return before, after

    def memory(self, before_after: Tensor) -> Tensor:
        """The differences, [B, rows · columns, width]."""
        difference: Tensor = self.change_detector(*self.features(before_after)).difference
        return difference

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Of the next word at each position, [B, L, words]."""
        logits: Tensor = self.speaker(ids, memory)
        return logits

    def next_word(self) -> CachedSpeaker:
        """The decoder with kept keys and values."""
        return CachedSpeaker(self.speaker)

    def attention(self, state: Any) -> Tensor:
        """Where each word looked, [B, length, rows, columns]; see `EncoderDecoder`."""
        assert isinstance(state, Words)
        return state.looked.float().softmax(2).unflatten(2, self.grid)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.frozen._apply(fn, recurse)
        return super()._apply(fn, recurse)
