"""`cc-train chain`: training shards with features → a captioner that also predicts masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from cc_prep.errors import UserError
from cc_prep.models.cpu import use_kernels
from cc_train import text
from cc_train.data.mirroring import MirroredBatches
from cc_train.data.shard_index import Entry
from cc_train.layers import frozen_backbone
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems import pair_training
from cc_train.systems.chain.batches import ChainBatches
from cc_train.systems.chain.captioner import ChainCaptioner, Feedback
from cc_train.systems.chain.objective import ChainObjective, Losses
from cc_train.systems.chain.regions import RegionSettings
from cc_train.systems.pair_training import PairSettings, PairTraining
from cc_train.text import VOCABULARY, TextCodec, Vocabulary
from cc_train.training.task import Task, TrainingRequest, over_samples, validation

STARTS = ("pair", "chain")  # systems whose runs this one can start from
MAX_LISTED = 4


class Settings(PairSettings):
    """All settings of `cc-train chain`, besides those of `PairSettings`."""

    regions: RegionSettings = RegionSettings()
    """The regions of change."""
    rounds: int = Field(2, ge=0)
    """How often regions and caption refine each other; 0: both are predicted once."""
    feedback: Feedback = "text"
    """What a round gives the masks. `text`: the words; `constant`: a learned constant; `none`: the
    constant, and the captions get nothing of the regions either. The parameters are the same."""
    sampled: float = Field(0.5, ge=0, le=1)
    """The share of steps in which rounds get the captioner's own words instead of the true ones."""
    losses: Losses = Losses()
    """Weights of the losses; 0 leaves one out."""
    trunk_rate: float = Field(1.0, ge=0)
    """Factor on the learning rate of encoder and decoder; 0 leaves them as they are and needs
    --init."""


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, captioner, objective. Raises UserError.

    request.init: a run of this system, or of `pair`, whose encoder and decoder this one has too.
    """
    if not settings.trunk_rate and request.init is None:
        raise UserError(
            "trunk_rate=0 leaves encoder and decoder untrained, and without --init they are random",
            "Give --init, such as captioner-mini, or set trunk_rate=1",
        )
    if settings.losses.contrast and settings.loop.grad_accum_steps > 1:
        raise UserError(
            "losses.contrast is over a whole batch, which cannot be accumulated",
            "Set losses.contrast=0, or loop.grad_accum_steps=1",
        )
    training = PairTraining.of(settings, request)
    data, codec = training.data, training.codec
    about = {**training.about, "mask_classes": mask_classes(data.train, data.valid)}
    spec = BackboneSpec.of(training.features)
    backbone = frozen_backbone.find(spec, settings.backbone_weights)
    network = make(settings, about, codec, backbone)
    if request.init is not None:
        _start_from(network, request.init, settings, about, codec)
    else:
        network.standardise(data.train, request.console)
    objective = ChainObjective(
        network,
        validation(data, settings, request, network.inputs, words=settings.words),
        weights=settings.losses,
        sampled=settings.sampled,
        label_smoothing=settings.label_smoothing,
        weight_decay=settings.loop.weight_decay,
        device=request.device,
        ranks=request.ranks,
        trunk_rate=settings.trunk_rate,
    )
    ordered = ChainBatches(
        codec,
        settings.decoder.length,
        settings.pairs_per_scene,
        spec.source,
        queries=settings.regions.queries,
    )
    batches = MirroredBatches(ordered, settings.mirror)
    files = {**codec.files(), **backbone.files()}
    return over_samples(
        data, batches, objective, settings, request=request, about=about, files=files
    )


def mask_classes(train: Sequence[Entry], valid: Sequence[Entry]) -> list[str]:
    """The names of the classes of masks, from 1 on.

    Raises:
        UserError: If there are no masks to train on, or if their lists of classes differ.
    """
    listed = sorted({entry.mask_classes for entry in (*train, *valid) if entry.mask_classes})
    if not any(entry.mask_classes for entry in train):
        raise UserError(
            "the shards hold no masks, and cc-train chain learns where something changed",
            "Build shards of data with masks, or use cc-train pair",
        )
    if len(listed) > 1:
        one, other = (", ".join(names) for names in listed[:2])
        raise UserError(
            f"the shards hold masks of other classes: {one}; {other}",
            "Give shards whose masks have the same classes",
        )
    return list(listed[0])


def make(
    settings: Settings, about: Mapping[str, Any], codec: TextCodec, backbone: FrozenBackbone
) -> ChainCaptioner:
    """An untrained captioner.

    Raises:
        UserError: For sizes that do not go together.
    """
    height, width = about["size"]
    return ChainCaptioner(
        backbone,
        size=(height, width),
        encoder=settings.encoder,
        regions=settings.regions,
        decoder=settings.decoder,
        codec=codec,
        rounds=settings.rounds,
        feedback=settings.feedback,
        folded=backbone.folded,
        mask_classes=tuple(about["mask_classes"]),
    )


def _start_from(
    network: ChainCaptioner,
    init: Path,
    settings: Settings,
    about: Mapping[str, Any],
    vocabulary: Vocabulary,
) -> None:
    """Takes over what a run of this system or of `pair` learned. Raises UserError.

    A run of `pair` has no regions; these begin as in a new run.
    """
    run = stored_run.read(init)
    if run.system not in STARTS:
        raise UserError(f"{init}: a run of {run.system}", f"Give one of {' or '.join(STARTS)}")
    if run.system == "chain" and run.settings["mask_classes"] != about["mask_classes"]:
        before, now = (", ".join(of["mask_classes"]) for of in (run.settings, about))
        raise UserError(
            f"{init} tells {before} apart, and these shards have masks of {now}",
            "Give shards with the same classes in the same order, or leave out --init",
        )
    if not settings.trunk_rate:
        _require_known_words(run, vocabulary)
    tensors = pair_training.learned(run, settings, network, vocabulary)
    if run.system == "pair":
        tensors = {**network.state_dict(), **tensors}
    transfer.take_over(network, tensors, init)


def _require_known_words(run: Run, vocabulary: Vocabulary) -> None:
    """Refuses captions with words that the run does not have: a frozen decoder never learns them.

    Raises UserError.
    """
    path = Path(run.folder) / VOCABULARY
    known = Vocabulary.read(path).ids
    new = [word for word in vocabulary.words if word not in known]
    if new:
        listed = ", ".join(new[:MAX_LISTED]) + (", …" if len(new) > MAX_LISTED else "")
        raise UserError(
            f"the captions have {len(new)} words that {run.folder} does not know ({listed}), those "
            "of reversed pairs included, and trunk_rate=0 would leave them untrained",
            f"Set trunk_rate=1, or vocabulary={path}, which makes them unknown words",
        )


def load(run: Run, device: str) -> ChainCaptioner:
    """The captioner of a run. Raises UserError."""
    return use_kernels(stored_run.network_of(run, _untrained, device))


def _untrained(run: Run) -> ChainCaptioner:
    settings = stored_run.settings_of(run, Settings)
    codec = text.load(run.folder, run.settings["text"])
    return make(settings, run.settings, codec, pair_training.backbone_of(run))
