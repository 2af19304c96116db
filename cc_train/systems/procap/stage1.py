"""`cc-train stage1`: training shards → a procedure encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.models.clip import count_layers
from cc_prep.settings import Section
from cc_prep.weights.registry import read_tensors
from cc_train.data import order
from cc_train.data.shard_index import Entry
from cc_train.data.stream import Stream, StreamSettings
from cc_train.systems.procap import mimetic, runs
from cc_train.systems.procap.batches import Keyframes, ProcedureBatches
from cc_train.systems.procap.frame_features import FrameFeatures, Kind
from cc_train.systems.procap.masking import Masks
from cc_train.systems.procap.procedure_encoder import Config, ProcedureEncoder
from cc_train.systems.procap.stage1_objective import Losses, Stage1Objective
from cc_train.training.distributed import joined
from cc_train.training.loop import Loop, fit, pick_device

BATCH = 16  # of validation
CLIP_BLOCKS = "visual.transformer."


class Network(Section):
    """Sizes of the procedure encoder; --init with CLIP's weights needs its width.

    position_std: how embeddings and positions start; the reference's is 1. waves: rows and columns
    start as sines and cosines. mimetic: attention starts as in `models/mimetic.py`.
    """

    width: int = Field(768, ge=64, multiple_of=64)
    layers: int = Field(12, ge=1)
    text_length: int = Field(24, ge=1)
    position_std: float = Field(1.0, gt=0)
    waves: bool = False
    mimetic: bool = False

    def encoder(
        self, features: FrameFeatures, frames: int, grid: tuple[int, int]
    ) -> ProcedureEncoder:
        """An untrained encoder for so many frames of [rows, columns] tokens."""
        config = Config(
            width=self.width,
            layers=self.layers,
            latent=features.channels,
            codes=features.vqgan.config.codes,
            frames=frames,
            rows=grid[0],
            columns=grid[1],
            text_length=self.text_length,
        )
        made = ProcedureEncoder(config, self.position_std)
        if self.waves:
            made.target_pos_emb.start_as_waves()
        if self.mimetic:
            mimetic.start(made.transformer)
        return made


class Settings(Section):
    """All settings of `cc-train stage1`. frames: what the encoder sees of a frame.

    cache_mb: see `FrameFeatures`. crop: train on random parts of the frames, of at least this share
    of their area; for pixels. vqgan: the file that the tokens were made with, if it has no name of
    its own. together_mb: see `Stage1Objective`.
    """

    frames: Kind = "tokens"
    cache_mb: int = Field(500, ge=0)
    together_mb: int = Field(1000, ge=0)
    crop: float | None = Field(None, gt=0, le=1)
    vqgan: str | None = None
    network: Network = Network()
    keyframes: Keyframes = Keyframes()
    masks: Masks = Masks()
    losses: Losses = Losses()
    first_caption: bool = False
    hold_out: runs.HoldOut = runs.HoldOut()
    stream: StreamSettings = StreamSettings()
    loop: Loop = Loop(
        steps=200_000,
        batch_size=8,
        schedule="constant",
        warmup=5000,
        validate_every=5000,
        checkpoint_every=5000,
    )


def train(
    settings: Settings,
    shards: Sequence[str],
    valid: Sequence[str],
    run: Path,
    init: Path | None,
    resume: str,
    console: Console,
) -> dict[str, float]:
    """Trains into `run`; the last validation's figures. Raises UserError and JobFailed.

    init: CLIP's weights, whose first blocks the encoder starts from.
    """
    loop = settings.loop
    if loop.threads:
        torch.set_num_threads(loop.threads)
    _check(settings)
    with joined(pick_device(loop) == "cuda") as ranks:
        console.quiet = not ranks.first
        data = runs.read(shards, valid, settings.hold_out, console)
        loop = loop.lasting(len(data.train), ranks.world)
        vqgan = runs.tokenizer(data.first, settings.vqgan)
        features = FrameFeatures(
            vqgan, settings.frames, settings.losses.compatible, settings.cache_mb
        )
        torch.manual_seed(loop.seed)
        grid = runs.grid(data.first, vqgan)
        encoder = settings.network.encoder(features, settings.keyframes.k + 2, grid)
        if init is not None:
            start_from_clip(encoder, init)
        make_batch = ProcedureBatches(
            settings.frames,
            settings.keyframes,
            settings.masks,
            settings.network.text_length,
            settings.first_caption,
        )
        objective = Stage1Objective(
            encoder,
            features,
            settings.losses,
            HeldOut(data.held_out, make_batch),
            loop.weight_decay,
            pick_device(loop),
            partial(_picture, data.held_out[:6], make_batch, features),
            settings.together_mb,
        )
        trained = replace(make_batch, crop=settings.crop)
        stream = Stream(data.train, trained, loop.batch_size, loop.seed, settings.stream, ranks)
        everything = {
            "kind": "stage1",
            "samples": {"train": len(data.train), "held_out": len(data.held_out)},
            "tokenizer": data.first["tokenizer"],
            "tokenizer_sha256": data.first["tokenizer_sha256"],
            **settings.model_copy(update={"loop": loop}).model_dump(mode="json"),
        }
        if ranks.first:
            runs.write_vqgan(run, vqgan)
        return fit(objective, stream, loop, everything, run, resume, console, ranks)


def _check(settings: Settings) -> None:
    """Raises UserError for settings that do not go together."""
    if settings.loop.batch_size % 2 and (settings.losses.align or settings.losses.consistency):
        raise UserError("loop.batch_size: each sample needs a neighbour", "Give an even one")
    if settings.crop is not None and settings.frames == "tokens":
        raise UserError("crop: tokens cannot be cropped", "Set frames=pixels, or crop=null")


def start_from_clip(encoder: ProcedureEncoder, place: Path) -> None:
    """Takes the first blocks of CLIP's image transformer. Raises UserError."""
    tensors = {name.removeprefix("clip."): t for name, t in read_tensors(place).items()}
    blocks = {n[len(CLIP_BLOCKS) :]: t for n, t in tensors.items() if n.startswith(CLIP_BLOCKS)}
    wanted = encoder.transformer.state_dict()
    there = count_layers(tensors, CLIP_BLOCKS.rstrip("."))
    if there < encoder.config.layers or any(
        blocks[name].shape != t.shape for name, t in wanted.items()
    ):
        width = len(next(iter(blocks.values()))) if blocks else 0
        raise UserError(
            f"{place}: {there} blocks, the first tensor {width} wide, do not make "
            f"{encoder.config.layers} of {encoder.config.width}",
            "Give CLIP's weights (ViT-B-32.pt), or other network.width and network.layers",
        )
    encoder.transformer.load_state_dict({name: blocks[name].float() for name in wanted})


@dataclass(frozen=True)
class HeldOut:
    """Batches for validation, the same each time; what cannot be read is left out."""

    entries: Sequence[Entry]
    make: ProcedureBatches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self.entries), BATCH):
            samples, dice = [], []
            for number, entry in enumerate(self.entries[start : start + BATCH], start):
                try:
                    samples.append(entry.read())
                    dice.append(order.rng_at(-1 % 2**32, number))
                except (DamagedShard, FileNotFoundError):
                    continue
            if samples:  # one alone is its own neighbour: its frames out of order still count
                yield self.make(samples, dice)


def _picture(
    entries: Sequence[Entry],
    make_batch: ProcedureBatches,
    features: FrameFeatures,
    network: ProcedureEncoder,
) -> np.ndarray | None:
    """What the encoder reconstructs of some held-out sequences."""
    from cc_train.systems.procap import visualise

    batch = next(iter(HeldOut(entries, make_batch)), None)
    return None if batch is None else visualise.reconstructions(batch, features, network)
