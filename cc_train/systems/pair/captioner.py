"""The pair captioner: frozen backbone, pair encoder, caption decoder."""

from __future__ import annotations

from torch import Tensor

from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.layers import caption_decoder, pair_encoder
from cc_train.layers.caption_decoder import CaptionDecoder
from cc_train.layers.comparison import Changes, change_bridge, change_kinds, change_tokens
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_trunk import PairTrunk
from cc_train.text import TextCodec


class PairCaptioner(PairTrunk):
    """Two images, or their stored features → a sentence.

    backbone: see `PairTrunk`. attend_grid: the decoder sees the differences at every place
    besides their summaries.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        config: pair_encoder.Config,
        decoder: caption_decoder.Config,
        text: TextCodec,
        attend_grid: bool = True,
    ) -> None:
        super().__init__(backbone, size, config, text, decoder.length)
        self.attend_grid = attend_grid
        self.bridge = change_bridge(config.width, decoder.width)
        self.kinds = change_kinds(decoder.width)
        self.decoder = CaptionDecoder(decoder)

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
