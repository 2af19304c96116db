"""The base of captioners of pairs: a frozen backbone, an encoder of differences, and a decoder.

A captioner defines what the decoder attends to: the differences alone, or regions as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.console import Console
from torch import Tensor

from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data import feature_statistics
from cc_train.data.shard_index import Entry
from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.layers.caption_decoder import CaptionDecoder, DecoderSettings
from cc_train.layers.feature_grid import ood_score
from cc_train.layers.frozen_backbone import FrozenBackbone
from cc_train.layers.pair_comparison import Changes, change_bridge, change_kinds
from cc_train.layers.pair_encoder import EncoderSettings, PairEncoder
from cc_train.layers.with_frozen import WithFrozen
from cc_train.text import TextCodec


class PairTrunk(WithFrozen, EncoderDecoder):
    """Two images, or their stored features → their differences, and a decoder of words.

    A captioner implements `memory`: what the decoder attends to.

    Args:
        bridge, kinds: Layers that turn differences into tokens, see `change_tokens`.
        backbone: Not in `state_dict`; a run holds it as a file, so that images can be captioned
            without shards.
        vocabulary: The facts that the encoder reads.
    """

    backbone: FrozenBackbone

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        encoder: EncoderSettings,
        decoder: DecoderSettings,
        codec: TextCodec,
        vocabulary: FactVocabulary = SOLIDS,
    ) -> None:
        inputs = Inputs(size, "features", backbone=backbone.spec.source)
        super().__init__(inputs, codec, decoder.length)
        self.use_frozen("backbone", backbone)
        self.encoder = PairEncoder(backbone.spec.grid, encoder, vocabulary)
        self.bridge = change_bridge(encoder.width, decoder.width)
        self.kinds = change_kinds(decoder.width, self.encoder.summaries)
        self.decoder = CaptionDecoder(len(codec), decoder)

    def prepare(self, before_after: Tensor) -> Tensor:
        """The features: the backbone runs once."""
        return self.features(before_after)

    def features(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w]; see `FrozenBackbone`."""
        features: Tensor = self.backbone(before_after)
        return features

    def changes(self, before_after: Tensor) -> Changes:
        """The differences between the images of pairs."""
        return self.encoder.changes(self.features(before_after))

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Logits of the next word at each position, float [B, L, words]."""
        logits: Tensor = self.decoder(ids, memory)
        return logits

    def next_word(self) -> CachedDecoder:
        """The decoder with kept keys and values."""
        return CachedDecoder(self.decoder)

    @torch.inference_mode()
    def ood_score(self, before_after: Tensor) -> list[float | None]:
        """How unlike the training images each pair is: see `feature_grid.ood_score`."""
        means, encoder = self.features(before_after).mean((3, 4)), self.encoder
        scores: list[float | None] = ood_score(means, encoder.mean, encoder.spread).tolist()
        return scores

    def standardise(self, entries: Sequence[Entry], console: Console) -> None:
        """Sets each channel's statistics over training samples. Raises UserError."""
        statistics = feature_statistics.compute(entries, self.inputs.backbone, console)
        self.encoder.mean.copy_(statistics.mean)
        self.encoder.std.copy_(statistics.std)
        self.encoder.spread.copy_(statistics.spread)
