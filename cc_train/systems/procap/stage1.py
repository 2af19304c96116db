"""`cc-train stage1`: training shards → a procedure encoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator
from rich.console import Console

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.settings import Conflict, Place, Section, Speed
from cc_prep.weights.registry import read_tensors
from cc_train.data import feature_statistics, image_pairs, order, shard_index, split
from cc_train.data.collate import Reads
from cc_train.data.feature_statistics import Statistics
from cc_train.data.image_pairs import Image
from cc_train.data.shard_index import Entry
from cc_train.data.split import Split
from cc_train.data.stream import REMEDY, StreamSettings
from cc_train.distributed import Ranks
from cc_train.evaluation.unreadable import Unreadable
from cc_train.layers import mimetic
from cc_train.layers.feature_grid import Pooling
from cc_train.runs import stored_run
from cc_train.runs.stored_run import Run
from cc_train.systems.procap import frozen_networks
from cc_train.systems.procap.batches import (
    Keyframes,
    ProcedureBatches,
    Text,
    other_scenes,
    text_ids,
)
from cc_train.systems.procap.frame_features import FrameFeatures, as_input
from cc_train.systems.procap.masking import Masks
from cc_train.systems.procap.procedure_encoder import (
    BYTE_PAIRS,
    Config,
    ProcedureEncoder,
    Sizes,
)
from cc_train.systems.procap.stage1_objective import Losses, Stage1Objective
from cc_train.systems.procap.stage1_probe import Gate, ProbedPairs
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest, over_samples

BATCH = 16  # of validation
VALIDATION_SEED = 2**32 - 1  # far from those that trainings are given
CLIP_BLOCKS = "visual.transformer."


class Network(Sizes):
    """Sizes and start of the procedure encoder; --init with CLIP's weights needs its width."""

    position_std: float = Field(1.0, gt=0)
    """Standard deviation of embeddings and positions before training."""
    sinusoidal_init: bool = False
    """Positions of rows and columns begin as sines and cosines."""
    mimetic: bool = False
    """Attention begins with the structure that Trockman and Kolter (ICML 2023) found in trained
    networks; for training from scratch."""

    def encoder(
        self,
        features: FrameFeatures,
        frames: int,
        grid: tuple[int, int],
        *,
        local: bool = False,
        words: bool = True,
    ) -> ProcedureEncoder:
        """An untrained encoder for so many frames of [rows, columns] tokens.

        Args:
            local: With the head of `losses.local`.
            words: With the embeddings of captions' byte pairs.
        """
        config = Config(
            **self.model_dump(include=set(Sizes.model_fields)),
            latent=features.channels,
            codes=features.vqgan.config.codes,
            frames=frames,
            rows=grid[0],
            columns=grid[1],
            standardised=features.backbone is not None,
            text_vocabulary=BYTE_PAIRS if words else 0,
            local=local,
        )
        encoder = ProcedureEncoder(config, self.position_std)
        if self.sinusoidal_init:
            encoder.target_pos_emb.init_sinusoidal()
        if self.mimetic:
            mimetic.start(encoder.transformer)
        return encoder


class Settings(Section):
    """All settings of `cc-train stage1`."""

    frames: Reads = "tokens"
    """What the encoder sees of a frame (docs/procap.md)."""
    reference_quirks: bool = False
    """The encoder sees images in [0, 1], as in ProCap's code; only with `frames: pixels`. Stage 2
    follows its stage 1."""
    cache_mb: Speed[int] = Field(500, ge=0)
    """On a CPU, with `frames: pixels`: MB of features that are kept, since the VQGAN never changes.
    """
    max_activation_mb: Speed[int] = Field(1000, ge=0)
    """On a CPU: above this many MB of activations, the three variants of a batch go through the
    encoder one by one."""
    crop: float | None = Field(None, gt=0, le=1)
    """With `frames: pixels`: train on a random part of the frames, the same in all, of at least
    this share of their area."""
    vqgan: Place[str | None] = None
    """The file of the VQGAN that made the tokens, if its weights have no name here."""
    backbone_weights: Place[str | None] = None
    """With `frames: features`: a file, or transformers' folder, for a backbone whose weights have
    no name here."""
    feature_pooling: Pooling = "unshuffle"
    """How finer features come to the grid of the tokens: `unshuffle`, into the channels, or, with
    `frames: features` alone, `mean`."""
    network: Network = Network()
    """Sizes and start of the encoder."""
    keyframes: Keyframes = Keyframes()
    """Which frames between before and after are seen."""
    masks: Masks = Masks()
    """What is masked."""
    losses: Losses = Losses()
    """Weights of the losses."""
    text: Text = "captions"
    """`none`: the encoder sees no captions, so that pairs without any teach it as much as others.
    It has no embeddings of words then. Not in the paper; it needs `losses.align=0`."""
    first_caption: bool = False
    """Always take a pair's first caption, and not a random one."""
    probe_labels: int | None = Field(None, ge=10)
    """In each validation a probe of so many labelled scenes reads the changes of the others, and
    logs how much more it tells from the states, or from surprise, beside the encoder's input than
    from that alone (docs/imagining.md). It needs facts of rendered scenes, twice as many of them.
    """
    validation_split: split.ValidationSplit = split.ValidationSplit()
    """What is held out of the training for validation, without --valid."""
    stream: StreamSettings = StreamSettings()
    """How shards are read."""
    loop: Loop = Loop(
        steps=200_000,
        batch_size=8,
        schedule="constant",
        warmup_steps=5000,
        validate_every=5000,
        checkpoint_every=5000,
    )
    """The training loop."""

    @model_validator(mode="after")
    def _only_pixels_are_cropped(self) -> Settings:
        if self.crop is not None and self.frames != "pixels":
            raise Conflict(
                f"crop: {self.frames} cannot be cropped", "Set frames=pixels, or crop=null"
            )
        return self

    @model_validator(mode="after")
    def _wrong_ones_are_of_other_pairs(self) -> Settings:
        if self.stream.item == "sentence":
            raise Conflict(
                "stream.item: stage 1 takes a neighbour's caption and frames for wrong ones, and a "
                "neighbour may then be the same pair",
                "Set stream.item=pair",
            )
        return self

    @model_validator(mode="after")
    def _align_needs_captions(self) -> Settings:
        if self.text == "none" and self.losses.align:
            raise Conflict("losses.align: it judges captions, and text=none shows none",
                           "Set losses.align=0, or text=captions")  # fmt: skip
        return self


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, procedure encoder, objective. Raises UserError.

    request.init: CLIP's weights, whose first blocks the encoder starts from.
    """
    frozen_networks.refuse_of_features(
        settings.frames, settings.backbone_weights, settings.feature_pooling
    )
    data = split.read(request.shards, request.valid, settings.validation_split, request.console)
    features = frozen_networks.find_features(
        data,
        settings.frames,
        settings.vqgan,
        settings.backbone_weights,
        settings.feature_pooling,
        reference_quirks=settings.reference_quirks,
        cache_mb=settings.cache_mb,
    )
    encoder = untrained(
        settings.network,
        features,
        settings.keyframes.k + 2,
        data,
        statistics(features, data, request.console),
        local=settings.losses.local > 0,
        words=settings.text != "none",
    )
    if request.init is not None:
        start_from_clip(encoder, request.init)
    make_batch = ProcedureBatches(
        settings.frames,
        settings.keyframes,
        settings.masks,
        settings.network.text_length,
        settings.first_caption,
        backbone=features.source,
        text=settings.text,
        pasted=settings.losses.local > 0,
    )
    for _ in HeldOut(shard_index.first_of_shards(data.valid), make_batch):
        pass  # a shard that validation cannot take is refused before the first step
    unreadable = Unreadable(
        len(data.valid), settings.stream.skip_bad, request.ranks, request.console
    )
    objective = Stage1Objective(
        encoder,
        features,
        settings=settings.losses,
        held_out=HeldOut(
            data.valid, make_batch, request.ranks, unreadable, settings.stream.pair_scenes
        ),
        weight_decay=settings.loop.weight_decay,
        device=request.device,
        picture=partial(_picture, data.valid[:6], make_batch, features, settings.losses.of_frames),
        **_probe(settings.probe_labels, data, features, request),
        max_activation_mb=settings.max_activation_mb,
        ranks=request.ranks,
    )
    trained = replace(make_batch, crop=settings.crop)
    about = {"samples": data.about(), **frozen_networks.about(data.first, features)}
    network_files = frozen_networks.files(features.vqgan, features.backbone)
    return over_samples(
        data,
        trained,
        objective,
        settings,
        request=request,
        about=about,
        files=network_files,
        partners=True,
    )


def _probe(
    labels: int | None, data: Split, features: FrameFeatures, request: TrainingRequest
) -> dict[str, Gate]:
    """The probe of the validations, if one is asked for; the first rank runs it."""
    if labels is None or not request.ranks.is_main_process:
        return {}
    pairs = ProbedPairs.read(data.valid, features)
    return {"probe": Gate(pairs, labels, request.device)}


def statistics(features: FrameFeatures, data: Split, console: Console) -> Statistics | None:
    """Statistics of a backbone's training features; None where frames are read otherwise."""
    if features.backbone is None:
        return None
    return feature_statistics.compute(
        data.train, features.source, console, features.backbone.on_grid
    )


def untrained(
    network: Network,
    features: FrameFeatures,
    frames: int,
    data: Split,
    seen: Statistics | None,
    *,
    local: bool = False,
    words: bool = True,
) -> ProcedureEncoder:
    """An untrained encoder, which has only the statistics of a backbone's features."""
    grid = frozen_networks.grid(data.first, features.vqgan)
    encoder = network.encoder(features, frames, grid, local=local, words=words)
    if seen is not None and encoder.standardise is not None:
        encoder.standardise.set(seen.mean, seen.std)
    return encoder


def read_encoder(run: Path) -> tuple[ProcedureEncoder, dict[str, Any]]:
    """The encoder of a stage-1 run and its settings. Raises UserError."""
    stored = stored_run.read(run, "stage1")

    def untrained_encoder(run: Run) -> ProcedureEncoder:
        return ProcedureEncoder(
            Config.of({name: tuple(t.shape) for name, t in run.tensors.items()})
        )

    return stored_run.network_of(stored, untrained_encoder, "cpu").train(), stored.settings


def read_features(run: Path, trained: Mapping[str, Any], cache_mb: int = 0) -> FrameFeatures:
    """The frozen networks of a stage-1 run with these settings. Raises UserError."""
    quirks = bool(trained["reference_quirks"])
    return frozen_networks.read(run, trained, trained["frames"], quirks, cache_mb)


@torch.inference_mode()
def imagine(run: Path, pair: tuple[Image, Image], caption: str) -> np.ndarray:
    """The frames that a stage-1 run imagines between two images, uint8 [T, H, W, 3] RGB.

    The first and the last frame are before and after. All frames between them are masked, so they
    follow from both images and the caption; an empty one, or one for a run that saw none, is left
    out. Raises UserError.
    """
    from cc_train.systems.procap import visualise

    encoder, settings = read_encoder(run)
    if not visualise.head_is_trained(encoder):
        raise UserError(f"{run}: it learned no tokens of frames", "Give a run with losses.msm")
    features, sizes = read_features(run, settings), encoder.eval().config
    factor = features.vqgan.config.factor
    size = (sizes.rows * factor, sizes.columns * factor)
    before_after = torch.from_numpy(image_pairs.stack([pair], size))
    ends = features(as_input(before_after))
    inner = ends.new_zeros(1, sizes.frames - 2, *ends.shape[2:])
    frames = torch.cat((ends[:, :1], inner, ends[:, 1:]), dim=1)
    visible = torch.zeros(1, sizes.frames, sizes.frame_tokens, dtype=torch.bool)
    visible[:, [0, -1]] = True
    seen = caption if sizes.text_vocabulary else ""
    control = encoder.control(torch.from_numpy(text_ids(seen, sizes.text_length)[None]))
    states = encoder(control, encoder.frames(frames, visible.flatten(1)))[:, control.shape[1] :]
    pictures = visualise.procedure(features, before_after, visualise.between(states, encoder))
    return pictures[0].numpy()


def clip_blocks(path: Path) -> dict[str, torch.Tensor]:
    """The blocks of CLIP's image transformer in a file of its weights. Raises UserError."""
    tensors = {name.removeprefix("clip."): t for name, t in read_tensors(path).items()}
    blocks = {n[len(CLIP_BLOCKS) :]: t for n, t in tensors.items() if n.startswith(CLIP_BLOCKS)}
    if not blocks:
        raise UserError(
            f"{path}: these are no CLIP weights: no {CLIP_BLOCKS}… in them",
            "Give CLIP's weights (ViT-B-32.pt), or a run of stage 1 to cc-train stage2",
        )
    return blocks


def start_from_clip(encoder: ProcedureEncoder, path: Path) -> None:
    """Takes the first blocks of CLIP's image transformer. Raises UserError."""
    blocks, own = clip_blocks(path), encoder.transformer.state_dict()
    count = len({name.split(".")[1] for name in blocks})
    if count < encoder.config.layers or any(
        blocks[name].shape != t.shape for name, t in own.items()
    ):
        width = len(next(iter(blocks.values())))
        raise UserError(
            f"{path}: {count} blocks, the first tensor {width} wide, do not make "
            f"{encoder.config.layers} of {encoder.config.width}",
            "Give CLIP's weights (ViT-B-32.pt), or other network.width and network.layers",
        )
    encoder.transformer.load_state_dict({name: blocks[name].float() for name in own})


@dataclass(frozen=True)
class HeldOut:
    """Batches for validation, the same each time; samples that cannot be read are left out.

    Attributes:
        ranks: The ranks take turns.
        unreadable: Counts the samples that are left out, if given.
        pair_scenes: As in the stream of the training; only then a sample's wrong caption and frames
            may be of its own scene.

    Raises:
        JobFailed: If too many samples cannot be read, and, as `Stream` does, for a damaged image
            that is decoded only in its batch.
    """

    entries: Sequence[Entry]
    make: ProcedureBatches
    ranks: Ranks = field(default_factory=Ranks)
    unreadable: Unreadable | None = None
    pair_scenes: bool = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        damaged: set[str] = set()
        for start in self.ranks.own_batches(len(self.entries), BATCH):
            samples, rngs, scenes = [], [], []
            for number, entry in enumerate(self.entries[start : start + BATCH], start):
                try:
                    samples.append(entry.read())
                    rngs.append(order.rng_at(VALIDATION_SEED, number))
                    scenes.append(entry.scene)
                except (DamagedShard, FileNotFoundError):
                    damaged.add(entry.key)
            if samples:  # one alone is its own neighbour: its frames out of order still count
                try:
                    partner = None if self.pair_scenes else other_scenes(scenes)
                    batch = self.make(samples, rngs, negative_index=partner)
                except DamagedShard as error:
                    raise JobFailed(f"{error}: {REMEDY}") from None
                yield batch
        if self.unreadable is not None:
            self.unreadable.agreed(damaged)


def _picture(
    entries: Sequence[Entry],
    make_batch: ProcedureBatches,
    features: FrameFeatures,
    of_frames: bool,
    network: ProcedureEncoder,
) -> np.ndarray | None:
    """A picture of the encoder's reconstructions of some held-out sequences, or, if it learns
    nothing of frames, of what it finds in pasted pairs."""
    from cc_train.systems.procap import visualise

    batch = next(iter(HeldOut(entries, make_batch)), None)
    if batch is None:
        return None
    draw = visualise.reconstructions if of_frames else visualise.pasted
    return draw(batch, features, network)
