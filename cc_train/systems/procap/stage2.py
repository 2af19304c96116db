"""`cc-train stage2`: training shards, and stage 1's encoder → a captioner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from rich.console import Console

from cc_prep import weights
from cc_prep.errors import UserError
from cc_prep.models.cpu import use_kernels
from cc_prep.settings import Conflict, Place, Section, Speed
from cc_prep.unspaced import Words
from cc_train import text
from cc_train.data import feature_statistics, shard_index, split
from cc_train.data.collate import CaptionBatches, Reads
from cc_train.data.mirroring import MirroredBatches
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.split import Split
from cc_train.data.stream import StreamSettings
from cc_train.layers import frozen_backbone
from cc_train.layers.feature_grid import Pooling
from cc_train.layers.frozen_backbone import BackboneSpec
from cc_train.runs import origin, stored_run
from cc_train.runs.stored_run import Run
from cc_train.systems.procap import frozen_networks, pair_start, procedure_encoder
from cc_train.systems.procap.captioner import ComparisonSettings, Decoder, ProCap, Queries
from cc_train.systems.procap.frame_features import FrameFeatures
from cc_train.systems.procap.procedure_encoder import ProcedureEncoder, resized_times
from cc_train.systems.procap.stage1 import (
    Network,
    clip_blocks,
    read_encoder,
    read_features,
    start_from_clip,
    statistics,
    untrained,
)
from cc_train.systems.procap.stage2_objective import Stage2Objective
from cc_train.text import VOCABULARIES, TextCodec
from cc_train.training.fact_losses import FactLosses
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest, captioned, over_samples, validation

ENCODER = "intermediate_generator."


class QuerySettings(Section):
    """The procedure queries."""

    k: int = Field(2, ge=0)
    """Frames of procedure queries; 0 leaves them out."""
    kind: Queries = "shared"
    """`shared`: stage 1's mask vector for all queries, as in ProCap's code; `independent`: a vector
    for each, as in the paper."""


class Settings(Section):
    """All settings of `cc-train stage2`."""

    frames: Reads | None = None
    """What the encoder sees of a frame; null: as in stage 1, and `tokens` without --init. With
    --init another value is refused."""
    reference_quirks: bool = False
    """Two deviations of ProCap's encoder in stage 2 (docs/training.md), and without --init images
    in [0, 1]."""
    cache_mb: Speed[int] = Field(500, ge=0)
    """On a CPU, with `frames: pixels`: MB of features that are kept, since the VQGAN never changes.
    """
    vqgan: Place[str | None] = None
    """The file of the VQGAN that made the tokens; refused with --init, which brings stage 1's."""
    backbone_weights: Place[str | None] = None
    """A file, or transformers' folder, for a backbone whose weights have no name here; refused with
    --init, which brings stage 1's."""
    feature_pooling: Pooling | None = None
    """How finer features come to the grid of the tokens; null: as in stage 1, and `unshuffle`
    without --init."""
    network: Network | None = None
    """Without a stage 1: the sizes and the start of the encoder, with the keys of stage 1."""
    queries: QuerySettings = QuerySettings()
    """The procedure queries."""
    decoder: Decoder = Decoder(width=512, heads=8, hidden=2048)
    """The caption decoder."""
    comparison: ComparisonSettings | None = None
    """Explicit differences between before and after, for the decoder; null: none, as in the paper.
    """
    init_pair: Place[str | None] = None
    """A run of `cc-train pair`, such as captioner-mini, whose comparison and decoder stage 2 starts
    from; it needs `comparison.skip` and `frames: features`."""
    pairs_per_scene: int | None = Field(None, ge=1)
    """Ordered pairs that are drawn of each scene, for `frames: features`; null takes before and
    after as they come."""
    facts: FactLosses | None = None
    """Weights of the losses of a renderer's knowledge, which is learned as well; it needs
    `comparison` and `pairs_per_scene`. null: it is not."""
    mirror: float = Field(0.0, ge=0, le=1)
    """The share of scenes that are seen mirrored; the shards need mirrored features
    (docs/features.md). It needs ordered pairs."""
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    """Label smoothing of the captions."""
    loss_reduction: Literal["mean", "sum"] = "mean"
    """Of the captions of a process's micro-batch. With `sum`, as in ProCap's code, `max_grad_norm`
    shortens the gradient of nearly each step."""
    encoder_lr_scale: float = Field(0.4, gt=0)
    """The encoder's learning rate in units of `loop.learning_rate`; with a high rate stage 2
    forgets stage 1."""
    freeze: bool = False
    """The encoder learns nothing."""
    decay_norms: bool = False
    """Weight decay falls on everything but biases and independent queries, as in ProCap's code."""
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
    loop: Loop = Loop(
        epochs=40,
        batch_size=16,
        optimizer="bert_adam",
        schedule="linear",
        learning_rate=5e-5,
        weight_decay=0.01,
        warmup_ratio=0.1,
    )
    """The training loop."""

    @model_validator(mode="after")
    def _parts_go_together(self) -> Settings:
        if self.mirror and self.pairs_per_scene is None:
            raise Conflict("mirror: ordered pairs alone are mirrored", "Set pairs_per_scene too")
        if self.facts is not None and None in (self.comparison, self.pairs_per_scene):
            raise Conflict(
                "facts: they are learned by a comparison of ordered pairs",
                "Set comparison and pairs_per_scene too, or facts=null",
            )
        if self.init_pair is not None and not (self.comparison and self.comparison.skip):
            raise Conflict(
                "init_pair: a captioner of pairs compares features",
                "Set comparison.skip=true too, or init_pair=null",
            )
        if self.init_pair is not None and self.decoder.reference_quirks:
            raise Conflict(
                "init_pair: its decoder has no decoder.reference_quirks", "Set one of them alone"
            )
        if self.facts is not None and self.loss_reduction == "sum":
            raise Conflict("loss_reduction: with facts it is mean", "Leave loss_reduction out")
        return self


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, captioner, objective. Raises UserError.

    request.init: the folder of a stage-1 run, or CLIP's weights, whose first blocks the encoder
    then starts from; without it the encoder starts untrained.
    """
    _refuse_unread(settings, request)
    pair = None if settings.init_pair is None else pair_start.read(settings.init_pair)
    data, codec = captioned(settings, request, VOCABULARIES[settings.words])
    network = make(settings, data, codec, request.init, request.console, pair)
    if settings.facts is not None:
        shard_index.require_facts(data.train)
    objective = Stage2Objective(
        network,
        validation(data, settings, request, network.inputs, words=settings.words),
        label_smoothing=settings.label_smoothing,
        weight_decay=settings.loop.weight_decay,
        device=request.device,
        encoder_lr_scale=settings.encoder_lr_scale,
        freeze=settings.freeze,
        decay_norms=settings.decay_norms,
        loss_reduction=settings.loss_reduction,
        facts=settings.facts,
    )
    batches = _batches(settings, network)
    about = {
        "samples": data.about(),
        "size": network.inputs.size,
        **frozen_networks.about(
            _made_with(settings, data, _stage1(request.init)), network.features
        ),
        "encoder": {
            "frames": network.features.kind,
            "reference_quirks": network.features.reference_quirks,
        },
        "text": codec.describe(),
    }
    if pair is not None and settings.init_pair is not None:
        about[origin.INIT_PAIR] = pair_start.about(pair, settings.init_pair)
    seen = network.features
    files = {**frozen_networks.files(seen.vqgan, seen.backbone), **codec.files()}
    return over_samples(
        data, batches, objective, settings, request=request, about=about, files=files
    )


def _batches(settings: Settings, network: ProCap) -> CaptionBatches | MirroredBatches:
    """Makes the batches of the settings. Raises UserError if these do not go together."""
    inputs, length = network.inputs, settings.decoder.length
    if settings.pairs_per_scene is None:
        return CaptionBatches(inputs.reads, network.codec, length, backbone=inputs.backbone)
    if inputs.reads != "features":
        raise UserError(
            f"pairs_per_scene: the captioner reads {inputs.reads}",
            "Set frames=features, or pairs_per_scene=null",
        )
    sizes = network.encoder.config
    grid = (sizes.rows, sizes.columns)
    count = settings.pairs_per_scene
    ordered = OrderedPairBatches(network.codec, length, count, inputs.backbone, grid)
    return MirroredBatches(ordered, settings.mirror, masks=False)


def _refuse_unread(settings: Settings, request: TrainingRequest) -> None:
    """Raises UserError for files of networks that would be ignored, as beside those of --init."""
    vqgan, backbone = settings.vqgan, settings.backbone_weights
    if _stage1(request.init) is None:
        if request.init is not None:
            clip_blocks(request.init)  # before any data is read
        kind, pooling = settings.frames or "tokens", settings.feature_pooling
        frozen_networks.refuse_of_features(kind, backbone, pooling)
        return
    frozen_networks.refuse_unread(
        {"vqgan": vqgan, "backbone_weights": backbone},
        f"with --init the network is that of {request.init}",
        "Leave {key} out with --init",
    )


def _stage1(init: Path | None) -> Path | None:
    """The stage-1 run among what --init may name; None for a file of CLIP's weights."""
    return None if init is None or init.is_file() else init


def make(
    settings: Settings,
    data: Split,
    codec: TextCodec,
    init: Path | None,
    console: Console,
    pair: Run | None = None,
) -> ProCap:
    """The captioner before training.

    Args:
        init: A stage-1 run, whose encoder it takes, or a file of CLIP's weights.
        pair: The run of `init_pair`.

    Raises:
        UserError: If settings, data and `init` do not go together.
    """
    k, stage1 = settings.queries.k, _stage1(init)
    if stage1 is None:
        network = settings.network or Network()
        features = frozen_networks.find_features(
            data,
            settings.frames or "tokens",
            settings.vqgan,
            settings.backbone_weights,
            settings.feature_pooling or "unshuffle",
            targets=False,
            reference_quirks=settings.reference_quirks,
            cache_mb=settings.cache_mb,
        )
        seen = statistics(features, data, console)
        encoder = untrained(network, features, k + 2, data, seen)
        if init is not None:
            start_from_clip(encoder, init)
    else:
        encoder, features = _from_stage1(settings, data, stage1)
        seen = statistics(features, data, console)
    width, comparison = encoder.config.width, settings.comparison
    if pair is not None and features.kind != "features":
        raise UserError(
            f"init_pair: it compares features, and the captioner reads {features.kind}",
            "Set frames=features, or init_pair=null",
        )
    if comparison is not None and width % comparison.heads:
        raise UserError(
            f"the encoder's width ({width}) is not divisible by comparison.heads "
            f"({comparison.heads})",
            "Change comparison.heads",
        )
    digest = data.first["tokenizer_sha256"] if features.kind == "tokens" else None
    captioner = ProCap(
        encoder,
        settings.decoder,
        features=features,
        codec=codec,
        queries=settings.queries.kind,
        reference_quirks=settings.reference_quirks,
        tokenizer=digest,
        comparison=settings.comparison,
    )
    if seen is not None:
        captioner.remember(seen)
    if pair is not None:
        assert settings.comparison is not None  # `Settings` refuses init_pair without
        pair_start.take_over(captioner, pair, settings.comparison, settings.decoder)
    return captioner


def by_name(run: Run) -> dict[str, dict[str, str]]:
    """Files of a run that an export may leave out: see `named_weights`."""
    return frozen_networks.by_name(run.folder, run.settings)


def load(run: Run, device: str) -> ProCap:
    """The captioner of a run. Raises UserError."""
    return use_kernels(stored_run.network_of(run, _untrained, device))


def _untrained(run: Run) -> ProCap:
    shapes = {
        name[len(ENCODER) :]: tuple(tensor.shape)
        for name, tensor in run.tensors.items()
        if name.startswith(ENCODER)
    }
    settings = run.settings
    codec = text.load(run.folder, settings["text"])
    range_quirk = bool(settings["encoder"]["reference_quirks"])
    kind = settings["encoder"]["frames"]
    features = frozen_networks.read(run.folder, settings, kind, range_quirk)
    quirks = bool(settings["reference_quirks"])
    encoder = ProcedureEncoder(procedure_encoder.Config.of(shapes))
    decoder = Decoder.model_validate(settings["decoder"])
    queries = settings["queries"]["kind"]
    digest = settings["tokenizer_sha256"] if features.kind == "tokens" else None
    known = settings["comparison"]
    comparison = None if known is None else ComparisonSettings(**known)
    return ProCap(
        encoder,
        decoder,
        features=features,
        codec=codec,
        queries=queries,
        reference_quirks=quirks,
        tokenizer=digest,
        comparison=comparison,
    )


def _from_stage1(
    settings: Settings, data: Split, init: Path
) -> tuple[ProcedureEncoder, FrameFeatures]:
    first, (encoder, trained) = data.first, read_encoder(init)
    if trained["frames"] != "features":
        frozen_networks.check(data)
    _check_sizes(settings, trained, init)
    features = read_features(init, trained, settings.cache_mb)
    _check_backbone(settings, data, init, features)
    if features.kind == "tokens" and trained["tokenizer_sha256"] != first["tokenizer_sha256"]:
        raise UserError(
            f"{init} was trained on tokens of {trained['tokenizer']}, these shards hold those of "
            f"{first['tokenizer']}",
            "Use shards made with the same VQGAN",
        )
    rows, columns = frozen_networks.grid(first, features.vqgan)
    if (rows, columns) != (encoder.config.rows, encoder.config.columns):
        raise UserError(
            f"{init} was trained on {encoder.config.rows} × {encoder.config.columns} tokens a "
            f"frame, these shards hold {rows} × {columns}",
            "Use shards of the same image_size",
        )
    return resized(encoder, settings.queries.k + 2), features


def _check_sizes(settings: Settings, trained: Mapping[str, Any], init: Path) -> None:
    """Raises UserError if the settings describe another encoder than the stage-1 run `init`."""
    network = None if settings.network is None else settings.network.model_dump(mode="json")
    # A run lacks the settings that came after it; it was trained with their defaults.
    stored = {**Network().model_dump(mode="json"), **trained["network"]}
    for key, expected, own in (
        ("frames", settings.frames, trained["frames"]),
        ("network", network, stored),
    ):
        if expected not in (None, own):
            raise UserError(
                f"{key} is {own} in {init}, and {expected} in the settings",
                f"Leave {key} out with --init",
            )


def _made_with(settings: Settings, data: Split, init: Path | None) -> Mapping[str, Any]:
    """What names the VQGAN: stage 1; without it a file, if features are read, or the samples."""
    if init is not None:
        return stored_run.read(init, "stage1").settings
    if settings.frames != "features" or settings.vqgan is None:
        return data.first
    located = weights.locate(settings.vqgan)
    return {"tokenizer": located.name, "tokenizer_sha256": located.sha256}


def _check_backbone(settings: Settings, data: Split, init: Path, features: FrameFeatures) -> None:
    """Raises UserError if the shards or the settings do not match the features of stage 1."""
    seen = features.backbone
    if settings.feature_pooling not in (None, seen.pooling if seen else None):
        raise UserError(
            f"feature_pooling is {seen.pooling if seen else 'not used'} in {init}, and "
            f"{settings.feature_pooling} in the settings",
            "Leave feature_pooling out with --init",
        )
    if seen is None:
        return
    stored = BackboneSpec.of(feature_statistics.first_features(data.train))
    frozen_backbone.require_same(init, seen.frozen.spec, stored)


def resized(encoder: ProcedureEncoder, frames: int) -> ProcedureEncoder:
    """The encoder for another number of frames, its time positions interpolated linearly."""
    tensors = encoder.state_dict()
    times = "target_pos_emb.weights.0"
    tensors[times] = resized_times(tensors[times], frames)
    other = ProcedureEncoder(encoder.config.model_copy(update={"frames": frames}))
    other.load_state_dict(tensors)
    return other
