"""What captioners of pairs share: a frozen backbone, an encoder of what differs, and a decoder.

A captioner adds what the decoder attends to: the changes alone, or regions as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones
from cc_prep.settings import Section
from cc_train.captioner import EncoderDecoder, Inputs
from cc_train.data import feature_statistics, split
from cc_train.data.shard_index import Entry
from cc_train.data.split import Split
from cc_train.data.stream import StreamSettings
from cc_train.decoding.cached_decoder import CachedDecoder
from cc_train.layers import caption_decoder, frozen_backbone, pair_encoder
from cc_train.layers.caption_decoder import CaptionDecoder
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.layers.pair_comparison import Changes, change_bridge, change_kinds
from cc_train.layers.pair_encoder import PairEncoder
from cc_train.text import VOCABULARY, TextCodec, Vocabulary
from cc_train.training import runs
from cc_train.training.runs import Run
from cc_train.training.settings import Loop
from cc_train.training.task import Request

BACKBONE = "backbone."
WORD_TENSORS = ("decoder.out.weight", "decoder.out.bias")  # a row for each word
# How captioners of pairs are trained where it is not set.
LOOP = Loop(
    steps=2000,
    batch_size=12,
    learning_rate=1e-3,
    betas=(0.9, 0.98),
    weight_decay=0.05,
    warmup_steps=60,
    min_lr_ratio=0.0,
)


class Encoder(Section):
    """Sizes of the encoder of pairs. feature_dropout: the share of the backbone's channels that are
    left out of an image in training; dropout: of what the facts are read from.
    """

    width: int = Field(128, ge=8, multiple_of=8)
    heads: int = Field(4, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    feature_dropout: float = Field(0.0, ge=0, lt=1)

    def check(self) -> None:
        """Raises UserError if the width cannot be divided among the heads."""
        if self.width % self.heads:
            raise UserError("encoder.width is not in encoder.heads even parts", "Set one of them")

    def config(self, grid: tuple[int, int, int]) -> pair_encoder.Config:
        """For a backbone's features: channels, rows and columns."""
        channels, rows, columns = grid
        return pair_encoder.Config(channels, rows, columns, **self.model_dump())


class Decoder(Section):
    """Sizes of the caption decoder. length: words of a caption and two marks."""

    width: int = Field(192, ge=8)
    heads: int = Field(4, ge=1)
    hidden: int = Field(512, ge=1)
    layers: int = Field(2, ge=1)
    length: int = Field(24, ge=3)
    dropout: float = Field(0.1, ge=0, lt=1)


class PairSettings(Section):
    """What all captioners of pairs are set by.

    backbone_weights: a file for a backbone whose weights have no name here. pairs_per_scene:
    ordered pairs drawn of each scene. mirror: the share of scenes that are seen mirrored, with
    their masks; see `MirroredBatches`. vocabulary: a file to use in place of the words of the
    training captions. min_word_count: rarer words become [UNK].
    """

    backbone_weights: str | None = None
    encoder: Encoder = Encoder()
    decoder: Decoder = Decoder()
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    pairs_per_scene: int = Field(3, ge=1)
    mirror: float = Field(0.0, ge=0, le=1)
    vocabulary: str | None = None
    min_word_count: int = Field(1, ge=1)
    validation_split: split.ValidationSplit = split.ValidationSplit()
    stream: StreamSettings = StreamSettings(pair_scenes=True)
    loop: Loop = LOOP


@dataclass(frozen=True)
class PairTraining:
    """What a captioner of pairs is trained on.

    features: of the first sample that can be read. about: what identifies the training, for a
    run's settings.
    """

    data: Split
    codec: Vocabulary
    features: Features
    about: dict[str, Any]

    @classmethod
    def of(cls, settings: PairSettings, request: Request) -> PairTraining:
        """Reads what is in the shards. Raises UserError."""
        settings.encoder.check()
        data, codec = split.captioned(request.shards, request.valid, settings, request.console)
        features = feature_statistics.first(data.train)
        return cls(data, codec, features, frozen_backbone.of_training(data, codec, features))


class PairTrunk(EncoderDecoder):
    """Two images, or their stored features → what differs between them, and a decoder of words.

    A captioner implements `memory`: what the decoder attends to. bridge, kinds: of the changes
    there, see `change_tokens`. backbone: no part of `state_dict`: a run has it as a file, so that
    images need no shards.
    """

    def __init__(
        self,
        backbone: FrozenBackbone,
        size: tuple[int, int],
        config: pair_encoder.Config,
        decoder: caption_decoder.Config,
        codec: TextCodec,
    ) -> None:
        inputs = Inputs(size, "features", backbone=backbone.spec.sha256)
        super().__init__(inputs, codec, decoder.length)
        self._frozen = (backbone,)  # in a tuple, so that it is no submodule
        self.encoder = PairEncoder(config)
        self.bridge = change_bridge(config.width, decoder.width)
        self.kinds = change_kinds(decoder.width)
        self.decoder = CaptionDecoder(decoder)

    @property
    def backbone(self) -> FrozenBackbone:
        """The frozen network whose features are compared."""
        return self._frozen[0]

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Loads weights. Checkpoints from before the backbone was a file hold it as well."""
        return super().load_state_dict(without_backbone(state_dict), *args, **kwargs)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.backbone._apply(fn, recurse)
        return super()._apply(fn, recurse)

    def prepare(self, before_after: Tensor) -> Tensor:
        """The features: the backbone runs once."""
        return self.features(before_after)

    def features(self, before_after: Tensor) -> Tensor:
        """Features float32 [B, 2, C, h, w]; see `FrozenBackbone`."""
        features: Tensor = self.backbone(before_after)
        return features

    def changes(self, before_after: Tensor) -> Changes:
        """What differs between the images of pairs."""
        return self.encoder.changes(self.features(before_after))

    def logits(self, ids: Tensor, memory: Tensor) -> Tensor:
        """Of the next word at each position, [B, L, words]."""
        logits: Tensor = self.decoder(ids, memory)
        return logits

    def next_word(self) -> CachedDecoder:
        """The decoder with kept keys and values."""
        return CachedDecoder(self.decoder)

    @torch.inference_mode()
    def strangeness(self, before_after: Tensor) -> list[float | None]:
        """Of each pair that of the stranger image: how far the means of its channels lie from those
        of the training images, in their deviations, squared and averaged over channels.
        """
        features = self.features(before_after)
        means = (features.mean((3, 4)) - self.encoder.mean) / self.encoder.spread
        distances: list[float | None] = means.square().mean(2).amax(1).tolist()
        return distances

    def standardise(self, entries: Sequence[Entry], sha256: str, console: Console) -> None:
        """Sets each channel's statistics over training samples. Raises UserError."""
        statistics = feature_statistics.over(entries, sha256, console)
        self.encoder.mean.copy_(statistics.mean)
        self.encoder.std.copy_(statistics.std)
        self.encoder.spread.copy_(statistics.spread)


def without_backbone(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors that are not the backbone's."""
    return {name: t for name, t in state_dict.items() if not name.startswith(BACKBONE)}


def backbone_of(run: Run) -> FrozenBackbone:
    """The frozen backbone of a run. Raises UserError.

    captioner-mini, and runs from before the backbone was a file, hold it with the rest.
    """
    spec = BackboneSpec.of_json(run.settings["backbone"])
    own = {n[len(BACKBONE) :]: t for n, t in run.tensors.items() if n.startswith(BACKBONE)}
    if own:
        return FrozenBackbone(backbones.rebuild(spec.name, own), spec)
    return frozen_backbone.read(run.folder, spec)


def learned(
    run: Run, settings: PairSettings, network: PairTrunk, vocabulary: Vocabulary
) -> dict[str, Tensor]:
    """The tensors of a run with the rows of words in the order of another vocabulary.

    Of the words, those that both know; others begin as in `network`, the new captioner of these
    settings. Raises UserError for a run of other heads or another backbone.
    """
    runs.require_same(run, "encoder.heads", settings.encoder.heads)
    runs.require_same(run, "decoder.heads", settings.decoder.heads)
    if BackboneSpec.of_json(run.settings["backbone"]) != network.backbone.spec:
        raise frozen_backbone.other_than_shards(run.folder)
    of_run = Vocabulary.read(Path(run.folder) / VOCABULARY)
    rows = [of_run.ids.get(word) for word in vocabulary.words]
    return runs.with_rows(without_backbone(run.tensors), network.state_dict(), WORD_TENSORS, rows)
