"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import Field
from rich.console import Console
from torch import nn

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import Features
from cc_prep.models import backbones
from cc_prep.settings import Section
from cc_prep.weights import networks
from cc_train import text
from cc_train.data import split
from cc_train.data.collate import NO_FEATURES
from cc_train.data.shard_index import ADVICE, Entry
from cc_train.data.stream import Stream, StreamSettings
from cc_train.evaluation.validation import Validation
from cc_train.layers import caption_decoder
from cc_train.systems.pair import encoder
from cc_train.systems.pair.batches import PairBatches
from cc_train.systems.pair.captioner import PairCaptioner
from cc_train.systems.pair.objective import Losses, PairObjective
from cc_train.text import TextCodec
from cc_train.training.runs import Run
from cc_train.training.settings import Loop
from cc_train.training.task import Request, Task

SAMPLES_FOR_STATISTICS = 300
LEAST_DEVIATION = 1e-4
BACKBONE = "backbone."


class Encoder(Section):
    """Sizes of the pair encoder."""

    width: int = Field(128, ge=8, multiple_of=8)
    heads: int = Field(4, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)


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
    ordered pairs drawn of each scene. vocabulary: a file to use in place of the words of the
    training captions. min_word_count: rarer words become [UNK].
    """

    backbone_weights: str | None = None
    encoder: Encoder = Encoder()
    decoder: Decoder = Decoder()
    losses: Losses = Losses()
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    pairs_per_scene: int = Field(3, ge=1)
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
    first = _features_of(data.train[0])
    channels, rows, columns = first.values.shape[1:]
    about = {
        "samples": data.about(),
        "text": words.describe(),
        "size": [data.first["height"], data.first["width"]],
        "backbone": {
            "name": first.backbone,
            "sha256": first.sha256,
            "grid": [channels, rows, columns],
        },
    }
    network = make(settings, about, words)
    _standardise(network, data.train, request.console)
    objective = PairObjective(
        network,
        Validation(data.valid, request.run),
        settings.losses,
        settings.label_smoothing,
        loop.weight_decay,
        request.device,
    )
    batches = PairBatches(words, settings.decoder.length, settings.pairs_per_scene)
    stream = Stream(data.train, batches, loop.batch_size, loop.seed, settings.stream, request.ranks)
    return Task(objective, stream, len(stream.items), about, words.files())


def make(settings: Settings, about: Mapping[str, Any], words: TextCodec) -> PairCaptioner:
    """A captioner with its backbone and nothing learned. Raises UserError."""
    known = about["backbone"]
    backbone, file = networks.backbone(known["name"], settings.backbone_weights)
    if file.sha256 != known["sha256"]:
        raise UserError(
            f"the shards hold features of other weights of {known['name']} than {file.path}",
            "Set backbone_weights to the file that they were made with",
        )
    return _network(settings, about, words, backbone)


def load(run: Run, device: str) -> PairCaptioner:
    """The captioner of a run. Raises UserError."""
    try:
        values = {name: run.settings[name] for name in Settings.model_fields}
        settings = Settings.model_validate(values)
        words = text.load(run.folder, run.settings["text"])
        backbone = backbones.rebuild(
            run.settings["backbone"]["name"],
            {n[len(BACKBONE) :]: t for n, t in run.tensors.items() if n.startswith(BACKBONE)},
        )
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
    return PairCaptioner(
        backbone,
        about["backbone"]["sha256"],
        (height, width),
        encoder.Config(channels, rows, columns, **settings.encoder.model_dump()),
        caption_decoder.Config(words=len(words), **sizes),
        words,
        attend_grid,
    )


def _standardise(network: PairCaptioner, entries: Sequence[Entry], console: Console) -> None:
    """Sets mean and deviation of each channel over samples spread evenly over the data."""
    step = max(1, len(entries) // SAMPLES_FOR_STATISTICS)
    with console.status("reading features for their mean and deviation"):
        values = torch.cat(
            [torch.from_numpy(_features_of(entry).values).float() for entry in entries[::step]]
        )
    network.encoder.mean.copy_(values.mean((0, 2, 3)))
    network.encoder.std.copy_(values.std((0, 2, 3)) + LEAST_DEVIATION)
    network.encoder.spread.copy_(values.mean((2, 3)).std(0) + LEAST_DEVIATION)


def _features_of(entry: Entry) -> Features:
    """A sample's features. Raises UserError."""
    try:
        features = entry.read().features
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None
    if features is None:
        raise UserError(f"{entry.shard}: {entry.key} holds no features", NO_FEATURES)
    return features
