"""`cc-train pair`: training shards with features → a pair captioner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor, nn

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
from cc_train.text import VOCABULARY, TextCodec, Vocabulary
from cc_train.training import runs
from cc_train.training.runs import Run
from cc_train.training.settings import Loop
from cc_train.training.task import Request, Task

SAMPLES_FOR_STATISTICS = 300
LEAST_DEVIATION = 1e-4
BACKBONE = "backbone."
WORD_TENSORS = ("decoder.out.weight", "decoder.out.bias")  # a row for each word


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
    first = _first_features(data.train)
    about = {
        "samples": data.about(),
        "text": words.describe(),
        "size": [data.first["height"], data.first["width"]],
        "backbone": {
            "name": first.backbone,
            "sha256": first.sha256,
            "grid": list(first.values.shape[1:]),
        },
    }
    network = make(settings, about, words)
    if request.init is not None:
        _start_from(network, request.init, about, words)
    else:
        _standardise(network, data.train, request.console)
    objective = PairObjective(
        network,
        Validation(data.valid, request.run),
        settings.losses,
        settings.label_smoothing,
        loop.weight_decay,
        request.device,
    )
    batches = PairBatches(words, settings.decoder.length, settings.pairs_per_scene, first.sha256)
    stream = Stream(data.train, batches, loop.batch_size, loop.seed, settings.stream, request.ranks)
    return Task(objective, stream, len(stream.items), about, words.files())


def make(settings: Settings, about: Mapping[str, Any], words: TextCodec) -> PairCaptioner:
    """A captioner with its backbone and nothing learned. Raises UserError."""
    known, weights = about["backbone"], settings.backbone_weights
    if known["name"] not in backbones.BACKBONES:
        raise UserError(
            f"the shards hold features of {known['name']}, which is no backbone of ours",
            f"Known: {', '.join(backbones.BACKBONES)}",
        )
    if weights is None and backbones.BACKBONES[known["name"]].weights is None:
        raise UserError(
            f"{known['name']} comes without weights",
            "Set backbone_weights to the file that the shards' features were made with",
        )
    backbone, file = networks.backbone(known["name"], weights)
    if file.sha256 != known["sha256"]:
        raise UserError(
            f"the shards hold features of other weights of {known['name']} than {file.path}",
            "Set backbone_weights to the file that they were made with",
        )
    return _network(settings, about, words, backbone)


def _start_from(
    network: PairCaptioner, init: Path, about: Mapping[str, Any], words: Vocabulary
) -> None:
    """Takes over what another run of this system learned. Raises UserError.

    Of the words, those that both know; others begin as in a new run.
    """
    run = runs.read(runs.locate(init), "pair")
    if run.settings["backbone"] != about["backbone"]:
        raise UserError(
            f"{init} has another backbone or image size than these shards",
            "Build the shards as it was trained, or leave out --init",
        )
    known = Vocabulary.read(runs.locate(init) / VOCABULARY)
    rows = [known.ids.get(word) for word in words.words]
    tensors, own = dict(run.tensors), network.state_dict()
    for name in WORD_TENSORS:
        if own[name].shape[1:] == tensors[name].shape[1:]:
            moved = [
                own[name][i] if row is None else tensors[name][row] for i, row in enumerate(rows)
            ]
            tensors[name] = torch.stack(moved)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[1].strip()
        raise UserError(f"{init} has other sizes: {reason}", "Use its settings") from None


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
    decoder = caption_decoder.Config(words=len(words), **sizes)
    decoder.check()
    return PairCaptioner(
        backbone,
        about["backbone"]["sha256"],
        (height, width),
        encoder.Config(channels, rows, columns, **settings.encoder.model_dump()),
        decoder,
        words,
        attend_grid,
    )


def _standardise(network: PairCaptioner, entries: Sequence[Entry], console: Console) -> None:
    """Sets each channel's statistics over samples spread evenly over the data.

    Samples that cannot be read are left out: training decides how many may be (`stream.skip_bad`).
    """
    step = max(1, len(entries) // SAMPLES_FOR_STATISTICS)
    sums: dict[str, Tensor] = {}
    with console.status("reading features for their mean and deviation"):
        for entry in entries[::step]:
            features = _features_of(entry)
            if features is None:
                continue
            values = torch.from_numpy(features.values).double()
            means = values.mean((2, 3))
            parts = {
                "images": torch.tensor(float(len(values))),
                "mean": means.sum(0),
                "square": values.square().mean((2, 3)).sum(0),
                "square of means": means.square().sum(0),
            }
            sums = {name: sums.get(name, 0) + part for name, part in parts.items()}
    count = sums.pop("images")
    mean, square, square_of_means = (total / count for total in sums.values())
    network.encoder.mean.copy_(mean)
    network.encoder.std.copy_((square - mean**2).clamp(min=0).sqrt() + LEAST_DEVIATION)
    network.encoder.spread.copy_((square_of_means - mean**2).clamp(min=0).sqrt() + LEAST_DEVIATION)


def _first_features(entries: Sequence[Entry]) -> Features:
    """Those of the first sample that can be read. Raises UserError if none can."""
    for entry in entries:
        features = _features_of(entry)
        if features is not None:
            return features
    raise UserError("not one sample of these shards can be read", ADVICE)


def _features_of(entry: Entry) -> Features | None:
    """A sample's features; None where it cannot be read. Raises UserError where it has none."""
    try:
        features = entry.read().features
    except (DamagedShard, FileNotFoundError):
        return None
    if features is None:
        raise UserError(f"{entry.shard}: {entry.key} holds no features", NO_FEATURES)
    return features
