"""`cc-train scorer`: training shards with features → SCORER's captioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from cc_prep.models.cpu import use_kernels
from cc_prep.settings import Conflict, Place, Section
from cc_prep.steps.imported_features import UNKNOWN
from cc_train import text
from cc_train.data import feature_statistics, shard_index, split
from cc_train.data.mirroring import MirroredBatches
from cc_train.data.shard_index import Entry
from cc_train.data.stream import StreamSettings
from cc_train.distributed import ALONE
from cc_train.layers import frozen_backbone
from cc_train.layers.attention_sizes import require_divisible
from cc_train.layers.frozen_backbone import BackboneSpec, FrozenBackbone
from cc_train.runs import stored_run, transfer
from cc_train.runs.stored_run import Run
from cc_train.systems.scorer import words
from cc_train.systems.scorer.batches import HALVES, Half, ScorerBatches, half_of
from cc_train.systems.scorer.captioner import ScorerCaptioner
from cc_train.systems.scorer.decoder import DecoderSettings
from cc_train.systems.scorer.encoder import EncoderSettings
from cc_train.systems.scorer.objective import Losses, ScorerObjective, Ways
from cc_train.systems.scorer.reconstruction import Reconstruction
from cc_train.systems.scorer.supervision import SceneLosses, Supervision
from cc_train.systems.scorer.words import ScorerWords
from cc_train.text import VOCABULARIES, TextCodec
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest, captioned, over_samples, validation

CBR_HEADS = 8
WORD_TENSORS = ("speaker.core.embed.weight", "speaker.logit.weight", "speaker.logit.bias")
UNSHOWN = (
    ("encoder", "heads"),
    ("encoder", "largest_grid"),
    ("encoder", "standardise"),
    ("decoder", "heads"),
)
WordSplitting = Literal["treebank", "characters", "blanks"]

text.register(words.CODEC, lambda folder: ScorerWords.read(folder / words.FILE))


class Settings(Section):
    """All settings of `cc-train scorer`. Neither `facts` nor `mirror` is in paper or code."""

    backbone_weights: Place[str | None] = None
    """A file, or transformers' folder, for a backbone whose weights have no name here."""
    reference_quirks: bool = False
    """The default of the next five keys: true as in the public code, false as in the paper."""
    matching: Literal["per_head", "summed"] | None = None
    """`per_head`: tokens are matched in each head by itself, as in the paper; `summed`: by all
    channels at once, as in its code."""
    cbr: Literal["trained", "frozen"] | None = None
    """`frozen`: CBR keeps its initial weights, as in the code, whose optimizer leaves it out."""
    sentence: Literal["words", "slots"] | None = None
    """`words`: the mean of a sentence is over its words; `slots`: the sum is divided by all
    positions of a caption, as in the code."""
    validation: Literal["greedy", "sampled"] | None = None
    """`sampled`: captions are drawn, as in the code's validation."""
    words: WordSplitting | None = None
    """How captions are split into words; characters for scripts without blanks (docs/training.md);
    `blanks`: as in the code, with its marks and its order."""
    encoder: EncoderSettings = EncoderSettings()
    """The encoder."""
    decoder: DecoderSettings = DecoderSettings()
    """The caption decoder."""
    losses: Losses = Losses()
    """Weights of the losses beside the caption's."""
    swap: float = Field(0.5, ge=0, le=1)
    """The probability that a scene's first image and its other view change places."""
    pairs_per_scene: int | None = Field(None, ge=1)
    """Ordered pairs that are drawn of each scene, without `swap`; null takes the change and the
    other view as they come."""
    facts: SceneLosses | None = None
    """Weights of the losses of a renderer's knowledge, which is learned as well; null: it is not.
    """
    mirror: float = Field(0.0, ge=0, le=1)
    """The share of scenes that are seen mirrored; the shards need mirrored features
    (docs/features.md)."""
    vocabulary: Place[str | None] = None
    """A file of words, such as ProCap's `word2idx.json`, in place of those of the training
    captions."""
    min_word_count: int = Field(1, ge=1)
    """Words that stand less often in the training captions become the unknown word."""
    validation_split: split.ValidationSplit = split.ValidationSplit()
    """What is held out of the training for validation, without --valid."""
    stream: StreamSettings = StreamSettings(pair_scenes=True)
    """How shards are read."""
    loop: Loop = Loop(
        steps=10000,
        batch_size=128,
        schedule="step",
        decay_epochs=15,
        learning_rate=2e-4,
        warmup_steps=0,
        max_grad_norm=None,
        validate_every=1000,
        checkpoint_every=1000,
    )
    """The training loop."""

    @model_validator(mode="after")
    def _sizes_and_data_go_together(self) -> Settings:
        width = self.encoder.width
        require_divisible(width, self.decoder.heads, "encoder.width", "decoder.heads")
        if self.losses.cbr and width % CBR_HEADS:
            raise Conflict(
                f"encoder.width ({width}) is not divisible by the {CBR_HEADS} heads of CBR",
                f"Set encoder.width to a multiple of {CBR_HEADS}, or losses.cbr=0",
            )
        if self.facts is not None and self.pairs_per_scene is None:
            raise Conflict("facts: they are learned from ordered pairs", "Set pairs_per_scene too")
        return self

    @property
    def ways(self) -> Ways:
        """The choices between paper and code: as set, else by `reference_quirks`."""
        quirks = self.reference_quirks
        return Ways(
            per_head=(self.matching or ("summed" if quirks else "per_head")) == "per_head",
            trained_cbr=(self.cbr or ("frozen" if quirks else "trained")) == "trained",
            slots=(self.sentence or ("slots" if quirks else "words")) == "slots",
            sampled=(self.validation or ("sampled" if quirks else "greedy")) == "sampled",
        )

    @property
    def split_words(self) -> WordSplitting:
        """The way in which captions are split into words."""
        return self.words or ("blanks" if self.reference_quirks else "treebank")


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, captioner, objective. Raises UserError.

    request.init: another run of this system, whose network this one starts from.
    """
    loop = settings.loop
    way = settings.split_words
    words = ScorerWords if way == "blanks" else VOCABULARIES[way]
    data, codec = captioned(settings, request, words)
    first = feature_statistics.first_features(data.train)
    about = {**frozen_backbone.of_training(data, codec, first), "ways": vars(settings.ways)}
    spec = BackboneSpec.of_json(about["backbone"])
    backbone = FrozenBackbone(None, spec)  # such a run captions stored features alone
    if settings.backbone_weights is not None or spec.sha256 != UNKNOWN:
        backbone = frozen_backbone.find(spec, settings.backbone_weights)
    network = make(settings, about, codec, backbone)
    _initialise(network, settings, request, codec, data.train)
    present = {half_of(entry.kind) for entry in data.train}
    halves: tuple[Half, ...] = tuple(half for half in HALVES if half in present)
    supervision = None
    if settings.facts is not None:
        shard_index.require_facts(data.train)
        supervision = Supervision(settings.facts, settings.encoder.width, network.grid)
    objective = ScorerObjective(
        network,
        Reconstruction(settings.encoder.width, CBR_HEADS) if settings.losses.cbr else None,
        # Captions that are drawn are drawn one after the other, all by the first process.
        score=validation(
            data,
            settings,
            request,
            network.inputs,
            ALONE if settings.ways.sampled else None,
            settings.words,
        ),
        weights=settings.losses,
        ways=settings.ways,
        weight_decay=loop.weight_decay,
        device=request.device,
        halves=halves,
        ranks=request.ranks,
        seed=loop.seed,
        supervision=supervision,
    )
    scorer_batches = ScorerBatches(
        codec,
        settings.decoder.length,
        backbone=spec.source,
        halves=halves,
        swap=settings.swap,
        pairs_per_scene=settings.pairs_per_scene,
        grid=None if supervision is None else network.grid,
    )
    batches = MirroredBatches(scorer_batches, settings.mirror, masks=False)
    files = {**codec.files(), **backbone.files()}
    return over_samples(
        data, batches, objective, settings, request=request, about=about, files=files
    )


def _initialise(
    network: ScorerCaptioner,
    settings: Settings,
    request: TrainingRequest,
    codec: TextCodec,
    entries: Sequence[Entry],
) -> None:
    """Takes over the run that --init names, or else sets the feature statistics of `entries`."""
    if request.init is not None:
        _start_from(network, request.init, settings, codec)
        if settings.losses.cbr and settings.ways.trained_cbr:
            request.console.print("CBR starts from scratch: --init does not read its weights")
    elif network.standardise is not None:
        source = network.backbone.spec.source
        statistics = feature_statistics.compute(entries, source, request.console, network.pooled)
        network.standardise.set(statistics.mean, statistics.std)


def make(
    settings: Settings, about: Mapping[str, Any], codec: TextCodec, backbone: FrozenBackbone
) -> ScorerCaptioner:
    """An untrained captioner.

    Raises:
        UserError: For features whose grid does not fit.
    """
    height, width = about["size"]
    return ScorerCaptioner(backbone, (height, width), settings.encoder, settings.decoder, codec)


def _start_from(network: ScorerCaptioner, init: Path, settings: Settings, codec: TextCodec) -> None:
    """Takes over what another run of this system learned. Raises UserError.

    Only words of both vocabularies are taken over; others begin as in a new run.
    """
    run = stored_run.read(init, "scorer")
    trained = BackboneSpec.of_json(run.settings["backbone"])
    frozen_backbone.require_same(init, trained, network.backbone.spec)
    for part, key in UNSHOWN:
        transfer.require_same(run, f"{part}.{key}", getattr(getattr(settings, part), key))
    of_run = text.load(init, run.settings["text"])
    tensors = run.tensors
    if of_run.describe() != codec.describe():
        rows = _rows(of_run, codec)
        tensors = transfer.with_rows(tensors, network.state_dict(), WORD_TENSORS, rows)
    transfer.take_over(network, tensors, init)


def _rows(other: TextCodec, codec: TextCodec) -> list[int | None]:
    """For each id of `codec`, the id of the same word or mark in `other`; None if it has none."""
    old = {other.decode([i]): i for i in range(len(other)) if other.decode([i])}
    rows = [old.get(codec.decode([i]) or "\0") for i in range(len(codec))]
    marks = {getattr(codec.marks, n): getattr(other.marks, n) for n in ("begin", "end", "pad")}
    return [marks.get(i, row) for i, row in enumerate(rows)]


def load(run: Run, device: str) -> ScorerCaptioner:
    """The captioner of a run. Raises UserError."""
    return use_kernels(stored_run.network_of(run, _untrained, device))


def _untrained(run: Run) -> ScorerCaptioner:
    settings = stored_run.settings_of(run, Settings)
    codec = text.load(run.folder, run.settings["text"])
    spec = BackboneSpec.of_json(run.settings["backbone"])
    stored = frozen_backbone.FILE in run.settings["files"]
    backbone = frozen_backbone.read(run.folder, spec) if stored else FrozenBackbone(None, spec)
    return make(settings, run.settings, codec, backbone)
