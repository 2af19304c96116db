"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from cc_prep.settings import Section
from cc_train import text
from cc_train.data import feature_statistics, split
from cc_train.data.mirroring import MIRROR, MirroredBatches
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.stream import StreamSettings
from cc_train.evaluation.validation import Validation
from cc_train.layers import caption_decoder, frozen_backbone, pair_trunk
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.text import TextCodec, Vocabulary
from cc_train.training import runs
from cc_train.training.runs import Run
from cc_train.training.settings import Loop
from cc_train.training.task import Request, Task, over_samples


class Decoder(pair_trunk.Decoder):
    """As of all captioners of pairs. attend_grid: it sees the differences at every place besides
    their summaries.
    """

    attend_grid: bool = True


class Settings(Section):
    """All settings of `cc-train pair`.

    backbone_weights: a file for a backbone whose weights have no name here. pairs_per_scene:
    ordered pairs drawn of each scene. mirror: the share of scenes that are seen mirrored; see
    `MirroredBatches`. vocabulary: a file to use in place of the words of the training captions.
    min_word_count: rarer words become [UNK].
    """

    backbone_weights: str | None = None
    encoder: pair_trunk.Encoder = pair_trunk.Encoder()
    decoder: Decoder = Decoder()
    losses: Losses = Losses()
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    pairs_per_scene: int = Field(3, ge=1)
    mirror: float = Field(0.0, ge=0, le=1)
    vocabulary: str | None = None
    min_word_count: int = Field(1, ge=1)
    validation_split: split.ValidationSplit = split.ValidationSplit()
    stream: StreamSettings = StreamSettings(pair_scenes=True)
    loop: Loop = pair_trunk.LOOP


def prepare(settings: Settings, request: Request) -> Task:
    """A captioner to be trained. Raises UserError."""
    settings.encoder.check()
    data, codec = split.captioned(request.shards, request.valid, settings, request.console)
    first = feature_statistics.first(data.train)
    about = frozen_backbone.of_training(data, codec, first)
    network = make(settings, about, codec)
    if request.init is not None:
        _start_from(network, request.init, settings, codec)
    else:
        network.standardise(data.train, first.sha256, request.console)
    objective = PairObjective(
        network,
        Validation(
            data.valid, request.run, request.ranks, settings.stream.skip_bad, request.console
        ),
        settings.losses,
        settings.label_smoothing,
        settings.loop.weight_decay,
        request.device,
    )
    ordered = OrderedPairBatches(
        codec, settings.decoder.length, settings.pairs_per_scene, first.sha256
    )
    batches = MirroredBatches(ordered, settings.mirror)
    files = {**codec.files(), **network.backbone.files()}
    return over_samples(data, batches, objective, settings, request, about, files)


def make(settings: Settings, about: Mapping[str, Any], codec: TextCodec) -> PairCaptioner:
    """A captioner with its backbone and nothing learned. Raises UserError."""
    spec = BackboneSpec.of_json(about["backbone"])
    backbone = frozen_backbone.find(spec, settings.backbone_weights)
    return _network(settings, about, codec, backbone)


def _start_from(
    network: PairCaptioner,
    init: Path,
    settings: Settings,
    vocabulary: Vocabulary,
) -> None:
    """Takes over what another run of this system learned. Raises UserError."""
    run = runs.read(init, "pair")
    runs.require_same(run, "encoder.heads", settings.encoder.heads)
    runs.require_same(run, "decoder.heads", settings.decoder.heads)
    tensors = pair_trunk.learned(run, network.backbone.spec, vocabulary, network.state_dict())
    runs.take_over(network, tensors, init)


def load(run: Run, device: str) -> PairCaptioner:
    """The captioner of a run. Raises UserError."""
    return runs.network_of(run, _untrained, device)


def _untrained(run: Run) -> PairCaptioner:
    settings = runs.settings_of(run, Settings, without=[MIRROR])
    codec = text.load(run.folder, run.settings["text"])
    return _network(settings, run.settings, codec, pair_trunk.backbone_of(run))


def _network(
    settings: Settings, about: Mapping[str, Any], codec: TextCodec, backbone: FrozenBackbone
) -> PairCaptioner:
    height, width = about["size"]
    sizes = settings.decoder.model_dump()
    attend_grid = sizes.pop("attend_grid")
    decoder = caption_decoder.Config(words=len(codec), **sizes)
    decoder.check()
    return PairCaptioner(
        backbone,
        (height, width),
        settings.encoder.config(backbone.spec.grid),
        decoder,
        codec,
        attend_grid,
    )
