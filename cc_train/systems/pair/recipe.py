"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import nn

from cc_prep.errors import UserError
from cc_prep.models import backbones
from cc_prep.settings import Section
from cc_train import text
from cc_train.data import feature_statistics, split
from cc_train.data.mirroring import MIRROR, MirroredBatches
from cc_train.data.ordered_pairs import OrderedPairBatches
from cc_train.data.stream import Stream, StreamSettings
from cc_train.evaluation.validation import Validation
from cc_train.layers import caption_decoder, frozen_backbone, pair_encoder, pair_trunk
from cc_train.layers.pair_trunk import BACKBONE
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.text import TextCodec, Vocabulary
from cc_train.training import runs
from cc_train.training.runs import Run
from cc_train.training.settings import Loop
from cc_train.training.task import Request, Task


class Encoder(Section):
    """Sizes of the pair encoder. feature_dropout: the share of the backbone's channels that are
    left out of an image in training; dropout: of what the facts are read from.
    """

    width: int = Field(128, ge=8, multiple_of=8)
    heads: int = Field(4, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    feature_dropout: float = Field(0.0, ge=0, lt=1)


class Decoder(Section):
    """Sizes of the caption decoder. length: words of a caption and two marks. attend_grid: it sees
    the differences at every place besides their summaries.
    """

    width: int = Field(192, ge=8)
    heads: int = Field(4, ge=1)
    hidden: int = Field(512, ge=1)
    layers: int = Field(2, ge=1)
    length: int = Field(24, ge=3)
    dropout: float = Field(0.1, ge=0, lt=1)
    attend_grid: bool = True


class Settings(Section):
    """All settings of `cc-train pair`.

    backbone_weights: a file for a backbone whose weights have no name here. pairs_per_scene:
    ordered pairs drawn of each scene. mirror: the share of scenes that are seen mirrored; see
    `MirroredBatches`. vocabulary: a file to use in place of the words of the training captions.
    min_word_count: rarer words become [UNK].
    """

    backbone_weights: str | None = None
    encoder: Encoder = Encoder()
    decoder: Decoder = Decoder()
    losses: Losses = Losses()
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    pairs_per_scene: int = Field(3, ge=1)
    mirror: float = Field(0.0, ge=0, le=1)
    vocabulary: str | None = None
    min_word_count: int = Field(1, ge=1)
    validation_split: split.ValidationSplit = split.ValidationSplit()
    stream: StreamSettings = StreamSettings(pair_scenes=True)
    loop: Loop = Loop(
        steps=2000,
        batch_size=12,
        learning_rate=1e-3,
        betas=(0.9, 0.98),
        weight_decay=0.05,
        warmup_steps=60,
        min_lr_ratio=0.0,
    )


def prepare(settings: Settings, request: Request) -> Task:
    """A captioner to be trained. Raises UserError."""
    if settings.encoder.width % settings.encoder.heads:
        raise UserError("encoder.width is not in encoder.heads even parts", "Set one of them")
    loop = settings.loop
    data = split.read(request.shards, request.valid, settings.validation_split, request.console)
    words = split.vocabulary(
        data.train, settings.vocabulary, settings.min_word_count, request.console
    )
    first = feature_statistics.first(data.train)
    about = {
        "samples": data.about(),
        "text": words.describe(),
        "size": [data.first["height"], data.first["width"]],
        "backbone": frozen_backbone.about(first),
    }
    network = make(settings, about, words)
    if request.init is not None:
        _start_from(network, request.init, about, words)
    else:
        network.standardise(data.train, first.sha256, request.console)
    objective = PairObjective(
        network,
        Validation(data.valid, request.run, request.ranks),
        settings.losses,
        settings.label_smoothing,
        loop.weight_decay,
        request.device,
    )
    ordered = OrderedPairBatches(
        words, settings.decoder.length, settings.pairs_per_scene, first.sha256
    )
    batches = MirroredBatches(ordered, settings.mirror)
    stream = Stream(data.train, batches, loop.batch_size, loop.seed, settings.stream, request.ranks)
    files = {**words.files(), **frozen_backbone.files(network.backbone)}
    return Task(objective, stream, len(stream.items), about, files)


def make(settings: Settings, about: Mapping[str, Any], words: TextCodec) -> PairCaptioner:
    """A captioner with its backbone and nothing learned. Raises UserError."""
    backbone = frozen_backbone.find(about["backbone"], settings.backbone_weights)
    return _network(settings, about, words, backbone)


def _start_from(
    network: PairCaptioner, init: Path, about: Mapping[str, Any], words: Vocabulary
) -> None:
    """Takes over what another run of this system learned. Raises UserError."""
    run = runs.read(init, "pair")
    tensors = pair_trunk.learned(run, about["backbone"], words, network.state_dict())
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise UserError(f"{init} has other sizes: {reason}", "Use its settings") from None


def load(run: Run, device: str) -> PairCaptioner:
    """The captioner of a run. Raises UserError."""
    try:
        values = {name: run.settings[name] for name in Settings.model_fields if name != MIRROR}
        settings = Settings.model_validate(values)
        words = text.load(run.folder, run.settings["text"])
        name = run.settings["backbone"]["name"]
        # captioner-mini, and runs from before the backbone was a file, hold it with the rest.
        own = {n[len(BACKBONE) :]: t for n, t in run.tensors.items() if n.startswith(BACKBONE)}
        backbone = backbones.rebuild(name, own) if own else frozen_backbone.read(run.folder, name)
        network = _network(settings, run.settings, words, backbone)
        network.load_state_dict(run.tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{run.folder}: no captioner ({str(error).splitlines()[0]})", "Train it anew"
        ) from None
    return network.to(device).eval()


def _network(
    settings: Settings, about: Mapping[str, Any], words: TextCodec, backbone: nn.Module
) -> PairCaptioner:
    channels, rows, columns = about["backbone"]["grid"]
    height, width = about["size"]
    sizes = settings.decoder.model_dump()
    attend_grid = sizes.pop("attend_grid")
    decoder = caption_decoder.Config(words=len(words), **sizes)
    decoder.check()
    return PairCaptioner(
        backbone,
        about["backbone"]["sha256"],
        (height, width),
        pair_encoder.Config(channels, rows, columns, **settings.encoder.model_dump()),
        decoder,
        words,
        attend_grid,
    )
