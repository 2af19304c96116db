"""SCORER: two images → a sentence, from differences after each is reconstructed from the other.

Names of tensors follow the public code's checkpoint: `change_detector` and `speaker`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.decoding.cached_attention import KVCache
from cc_train.layers.feature_grid import Standardise, to_grid
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.with_frozen import WithFrozen
from cc_train.systems.scorer.cached_decoder import CachedSpeaker
from cc_train.systems.scorer.decoder import DecoderSettings, Speaker
from cc_train.systems.scorer.encoder import ChangeDetector, EncoderSettings
from cc_train.text import TextCodec


class ScorerCaptioner(WithFrozen, EncoderDecoder):
    """Two images, or their stored features → a sentence.

    Args:
        backbone: Not in `state_dict`.

    Raises:
        UserError: For a grid of its features that does not fit.
    """

    backbone: FrozenBackbone

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        encoder: EncoderSettings,
        decoder: DecoderSettings,
        codec: TextCodec,
    ) -> None:
        inputs = Inputs(
            size,
            "features",
            backbone=backbone.spec.source,
            takes_images=backbone.network is not None,
        )
        super().__init__(inputs, codec, decoder.length)
        self.use_frozen("backbone", backbone)
        channels, rows, columns = backbone.spec.grid
        self.standardise = Standardise(channels) if encoder.standardise else None
        self.change_detector = ChangeDetector(channels, encoder.grid_of(rows, columns), encoder)
        self.speaker = Speaker(len(codec), encoder.width, decoder)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of what the decoder attends to."""
        return self.change_detector.grid

    def pooled(self, features: Tensor) -> Tensor:
        """A backbone's features [N, C, h, w], float32, pooled to the grid of the decoder."""
        return to_grid(features.float(), self.grid, "mean")

    def features(self, before_after: Tensor) -> tuple[Tensor, Tensor]:
        """Features of before and after, float32 [B, C, rows, columns] each, as the encoder reads
        them; before_after as `CaptionModel.caption` takes it.

        Raises:
            UserError: For other sizes.
        """
        features = self.backbone(before_after)
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
        """Logits of the next word at each position, float [B, L, words]."""
        logits: Tensor = self.speaker(ids, memory)
        return logits

    def next_word(self) -> CachedSpeaker:
        """The decoder with kept keys and values."""
        return CachedSpeaker(self.speaker)

    def attention(self, state: Any) -> Tensor:
        """Attention of each word, [B, length, rows, columns]; see `EncoderDecoder.attention`.

        It is the softmax of the heads' mean score. The decoder itself mixes by each head's softmax.
        """
        assert isinstance(state, KVCache)
        assert state.looked is not None
        return state.looked.float().softmax(2).unflatten(2, self.grid)
