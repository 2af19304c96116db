"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models.cpu import use_kernels
from cc_train import text
from cc_train.data import shard_index
from cc_train.data.mirroring import MirroredBatches
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.shard_index import Entry
from cc_train.data.supervision import SOLIDS, FactVocabulary
from cc_train.layers import frozen_backbone
from cc_train.layers.caption_decoder import DecoderSettings
from cc_train.layers.change_map import ChangeMapSettings
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.sharing.onnx_graph import Graphs
from cc_train.systems import pair_training
from cc_train.systems.pair import onnx_graphs
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.systems.pair.several import SeveralCaptioner
from cc_train.systems.pair_training import PairSettings, PairTraining
from cc_train.text import TextCodec, Vocabulary
from cc_train.training.task import Task, TrainingRequest, over_samples, validation

MAP = "change_map."  # what the names of the tensors of a map of changes begin with
FACTS = "facts"  # in a run's settings: the facts that it learned, unless they are SOLIDS


class Decoder(DecoderSettings):
    """Sizes of the caption decoder of `cc-train pair`."""

    attend_grid: bool = True
    """The decoder attends to the differences at every place of the grid, and not only to their
    summaries."""
    changes: ChangeMapSettings | None = None
    """A map of changes speaks in place of the decoder: it finds several changes of rendered solids
    in a pair, and says each in a plain sentence."""


class Settings(PairSettings):
    """All settings of `cc-train pair`; see `PairSettings`."""

    decoder: Decoder = Decoder()
    """The caption decoder."""
    losses: Losses = Losses()
    """Weights of the losses; 0 leaves one out."""


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, captioner, objective. Raises UserError."""
    training = PairTraining.of(settings, request)
    codec = training.codec
    spec = BackboneSpec.of(training.features)
    backbone = frozen_backbone.find(spec, settings.backbone_weights)
    init = None if request.init is None else stored_run.read(request.init, "pair")
    vocabulary = _facts_of(training.data.train, init)
    about = training.about | ({} if vocabulary == SOLIDS else {FACTS: vocabulary.to_json()})
    if settings.decoder.changes is not None and vocabulary != SOLIDS:
        raise UserError(
            "decoder.changes: it knows rendered solids alone", "Set decoder.changes=null"
        )
    if settings.decoder.changes is not None:
        shard_index.require_facts(training.data.train)
    network = _network(settings, about, codec, backbone)
    if init is not None and request.init is not None:
        transfer.take_over(network, _learned(init, settings, network, codec), request.init)
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
    ordered = OrderedPairBatches(
        codec,
        length,
        count,
        spec.source,
        vocabulary=vocabulary,
        changes=settings.decoder.changes is not None,
    )
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


def _learned(
    init: Run, settings: Settings, network: PairCaptioner, codec: Vocabulary
) -> dict[str, Tensor]:
    """The tensors of a run to start from, with the network's own map where the run has none."""
    own = {name: t for name, t in network.state_dict().items() if name.startswith(MAP)}
    return own | pair_training.learned(init, settings, network, codec)


def _facts_of(entries: Sequence[Entry], init: Run | None) -> FactVocabulary:
    """The facts that are learned: those of the training samples, or of the run to start from.

    Of rendered solids the first sample is read, else all are.

    Raises:
        UserError: Where both have facts, and not the same ones.
    """
    [first] = shard_index.facts(entries[:1], set())
    of_init = None if init is None else _known(init.settings)
    if first is None:
        return of_init or SOLIDS
    own = FactVocabulary.of([first])
    if own != SOLIDS:
        own = FactVocabulary.of(shard_index.facts(entries, set()))
    if init is not None and own != of_init:
        raise UserError(
            f"{init.folder} was trained on other types of change or attributes than these shards",
            "Leave out --init, or give shards of the same kind and classes",
        )
    return own


def _known(about: Mapping[str, Any]) -> FactVocabulary:
    """The facts that a run with these settings learned."""
    return FactVocabulary.from_json(about[FACTS]) if FACTS in about else SOLIDS


def load(run: Run, device: str) -> PairCaptioner:
    """The captioner of a run. Raises UserError."""
    return use_kernels(stored_run.network_of(run, _untrained, device))


def graphs(captioner: PairCaptioner, pairs: Tensor) -> Graphs:
    """The captioner as ONNX graphs; see `onnx_graphs.of`."""
    return onnx_graphs.of(captioner, pairs)


def _untrained(run: Run) -> PairCaptioner:
    settings = stored_run.settings_of(run, Settings)
    codec = text.load(run.folder, run.settings["text"])
    return _network(settings, run.settings, codec, pair_training.backbone_of(run))


def _network(
    settings: Settings, about: Mapping[str, Any], codec: TextCodec, backbone: FrozenBackbone
) -> PairCaptioner:
    height, width = about["size"]
    encoder, decoder = settings.encoder, settings.decoder
    shared = (backbone, (height, width), encoder, decoder, codec, decoder.attend_grid)
    if decoder.changes is not None:
        return SeveralCaptioner(*shared, decoder.changes)
    return PairCaptioner(*shared, _known(about))
