"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cc_train import text
from cc_train.data import shard_index
from cc_train.data.mirroring import MirroredBatches
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.shard_index import Entry
from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.layers import frozen_backbone
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems import pair_training
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.systems.pair_training import PairSettings, PairTraining
from cc_train.text import TextCodec, Vocabulary
from cc_train.training.task import Request, Task, over_samples, validation

FACTS = "facts"  # in a run's settings: the facts that it learned, unless they are SOLIDS


class Decoder(DecoderSettings):
    """Sizes of the caption decoder of `cc-train pair`."""

    attend_grid: bool = True
    """The decoder attends to the differences at every place of the grid, and not only to their
    summaries."""


class Settings(PairSettings):
    """All settings of `cc-train pair`; see `PairSettings`."""

    decoder: Decoder = Decoder()
    """The caption decoder."""
    losses: Losses = Losses()
    """Weights of the losses; 0 leaves one out."""


def prepare(settings: Settings, request: Request) -> Task:
    """The training task: data, captioner, objective. Raises UserError."""
    training = PairTraining.of(settings, request)
    codec = training.codec
    spec = BackboneSpec.of(training.features)
    backbone = frozen_backbone.find(spec, settings.backbone_weights)
    vocabulary = _facts_of(training.data.train)
    about = training.about | ({} if vocabulary == SOLIDS else {FACTS: vocabulary.to_json()})
    network = _network(settings, about, codec, backbone)
    if request.init is not None:
        _start_from(network, request.init, settings, codec)
    else:
        network.standardise(training.data.train, request.console)
    objective = PairObjective(
        network,
        validation(training.data, settings, request, network.inputs, words=settings.words),
        settings.losses,
        settings.label_smoothing,
        settings.loop.weight_decay,
        request.device,
    )
    length, count = settings.decoder.length, settings.pairs_per_scene
    ordered = OrderedPairBatches(codec, length, count, spec.source, vocabulary=vocabulary)
    batches = MirroredBatches(ordered, settings.mirror, masks=False)
    files = {**codec.files(), **backbone.files()}
    return over_samples(
        training.data,
        batches,
        objective,
        settings,
        request=request,
        about=about,
        files=files,
    )


def _facts_of(entries: Sequence[Entry]) -> FactVocabulary:
    """The vocabulary of the facts of training samples; all are read if the first was composed."""
    first = shard_index.facts(entries[:1], set())
    if FactVocabulary.of(first) == SOLIDS:
        return SOLIDS
    return FactVocabulary.of(shard_index.facts(entries, set()))


def _start_from(
    network: PairCaptioner, init: Path, settings: Settings, vocabulary: Vocabulary
) -> None:
    """Takes over what another run of this system learned. Raises UserError."""
    run = stored_run.read(init, "pair")
    transfer.take_over(network, pair_training.learned(run, settings, network, vocabulary), init)


def load(run: Run, device: str) -> PairCaptioner:
    """The captioner of a run. Raises UserError."""
    return stored_run.network_of(run, _untrained, device)


def _untrained(run: Run) -> PairCaptioner:
    settings = stored_run.settings_of(run, Settings)
    codec = text.load(run.folder, run.settings["text"])
    return _network(settings, run.settings, codec, pair_training.backbone_of(run))


def _network(
    settings: Settings, about: Mapping[str, Any], codec: TextCodec, backbone: FrozenBackbone
) -> PairCaptioner:
    height, width = about["size"]
    return PairCaptioner(
        backbone,
        (height, width),
        settings.encoder,
        settings.decoder,
        codec,
        settings.decoder.attend_grid,
        FactVocabulary.from_json(about[FACTS]) if FACTS in about else SOLIDS,
    )
