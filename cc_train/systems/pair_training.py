"""Settings and training data of captioners of pairs, and how they start from another run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import Tensor

from cc_prep.formats.training_shards import Features
from cc_prep.settings import Place, Section
from cc_prep.unspaced import Words
from cc_train.data import feature_statistics, split
from cc_train.data.split import Split
from cc_train.data.stream import StreamSettings
from cc_train.layers import frozen_backbone
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.layers.pair_encoder import EncoderSettings
from cc_train.runs import transfer
from cc_train.runs.stored_run import Run
from cc_train.systems.pair_trunk import PairTrunk
from cc_train.text import VOCABULARIES, VOCABULARY, Vocabulary
from cc_train.training.settings import Loop
from cc_train.training.task import TrainingRequest, captioned

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


class PairSettings(Section):
    """Settings of all captioners of pairs."""

    backbone_weights: Place[str | None] = None
    """A file, or transformers' folder, for a backbone whose weights have no name here."""
    encoder: EncoderSettings = EncoderSettings()
    """The encoder of pairs."""
    decoder: DecoderSettings = DecoderSettings()
    """The caption decoder."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Label smoothing of the captions."""
    pairs_per_scene: int = Field(3, ge=1)
    """Ordered pairs that a batch takes of each scene."""
    mirror: float = Field(0.0, ge=0, le=1)
    """The share of scenes that are seen mirrored; the shards need mirrored features
    (docs/features.md)."""
    vocabulary: Place[str | None] = None
    """A file of words, such as ProCap's `word2idx.json`, in place of those of the training
    captions."""
    min_word_count: int = Field(1, ge=1)
    """Words that stand less often in the training captions become the unknown word."""
    words: Words = "treebank"
    """How captions are split into words, for the training and its scores; characters for scripts
    without blanks (docs/training.md)."""
    validation_split: split.ValidationSplit = split.ValidationSplit()
    """What is held out of the training for validation, without --valid."""
    stream: StreamSettings = StreamSettings(pair_scenes=True)
    """How shards are read."""
    loop: Loop = LOOP
    """The training loop."""


@dataclass(frozen=True)
class PairTraining:
    """The training data of a captioner of pairs.

    Attributes:
        features: Of the first sample that can be read.
        about: A description of the data, for the run's settings.
    """

    data: Split
    codec: Vocabulary
    features: Features
    about: dict[str, Any]

    @classmethod
    def of(cls, settings: PairSettings, request: TrainingRequest) -> PairTraining:
        """Reads the training data from the shards. Raises UserError."""
        data, codec = captioned(settings, request, VOCABULARIES[settings.words])
        features = feature_statistics.first_features(data.train)
        return cls(data, codec, features, frozen_backbone.of_training(data, codec, features))


def backbone_of(run: Run) -> FrozenBackbone:
    """The frozen backbone of a run. Raises UserError."""
    return frozen_backbone.read(run.folder, BackboneSpec.of_json(run.settings["backbone"]))


def learned(
    run: Run, settings: PairSettings, network: PairTrunk, vocabulary: Vocabulary
) -> dict[str, Tensor]:
    """The tensors of a run with the rows of words in the order of another vocabulary.

    Only words of both vocabularies are taken over; others begin as in `network`, the new captioner
    of these settings.

    Raises:
        UserError: For a run with other heads or another backbone.
    """
    transfer.require_same(run, "encoder.heads", settings.encoder.heads)
    transfer.require_same(run, "decoder.heads", settings.decoder.heads)
    trained = BackboneSpec.of_json(run.settings["backbone"])
    frozen_backbone.require_same(run.folder, trained, network.backbone.spec)
    of_run = Vocabulary.read(Path(run.folder) / VOCABULARY)
    rows = transfer.word_rows(of_run, vocabulary)
    return transfer.with_rows(run.tensors, network.state_dict(), WORD_TENSORS, rows)
