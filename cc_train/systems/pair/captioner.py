"""The pair captioner: frozen backbone, pair encoder, caption decoder."""

from __future__ import annotations

from torch import Tensor

from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_comparison import Changes, change_tokens
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.text import TextCodec


class PairCaptioner(PairTrunk):
    """Two images, or their stored features → a sentence.

    Args:
        backbone: See `PairTrunk`.
        attend_grid: The decoder attends to the differences at every place, and not only to their
            summaries.
        vocabulary: The facts that the encoder reads.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        encoder: EncoderSettings,
        decoder: DecoderSettings,
        codec: TextCodec,
        attend_grid: bool = True,
        vocabulary: FactVocabulary = SOLIDS,
    ) -> None:
        super().__init__(backbone, size, encoder, decoder, codec, vocabulary)
        self.attend_grid = attend_grid

    def attended(self, changes: Changes) -> Tensor:
        """What the decoder attends to, [B, N, width]."""
        positions = self.encoder.position if self.attend_grid else None
        return change_tokens(changes, positions, self.bridge, self.kinds)

    def memory(self, before_after: Tensor) -> Tensor:
        """What the decoder attends to, [B, N, width]; see `EncoderDecoder.memory`."""
        return self.attended(self.changes(before_after))
