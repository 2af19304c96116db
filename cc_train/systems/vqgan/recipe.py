"""`cc-train vqgan`: frames of sequence shards → a VQGAN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models.vqgan import VQGAN, Config
from cc_prep.settings import Conflict, Section
from cc_prep.weights import networks, read_tensors
from cc_train.data import order
from cc_train.data.sequence_index import Sample, describe, read_index
from cc_train.data.stream import StatelessSource
from cc_train.runs import run_folder
from cc_train.systems.vqgan.objective import VqganObjective, Weights, measure
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest

Frame = tuple[Sample, str]


class Data(Section):
    """The training data: square crops of all frames."""

    crop: int = Field(112, ge=16)
    """Side of a crop, in px."""
    flip: bool = True
    """Mirror half of the crops."""
    held_out: float = Field(0.05, gt=0, lt=1)
    """The share of the ids that is held out for validation."""
    validation_frames: int = Field(64, ge=1)
    """How many of their frames are used for it, uncropped."""


class Settings(Section):
    """All settings of `cc-train vqgan`."""

    network: Config = Config(channels=32, blocks=1, latent=64, codes=512, code_width=32)
    """Sizes of the network."""
    weights: Weights = Weights()
    """Weights of the losses."""
    data: Data = Data()
    """The training data."""
    loop: Annotated[Loop, Field()] = Loop(
        steps=5000, learning_rate=4e-4, betas=(0.5, 0.9), ema_decay=0.998, precision="bfloat16"
    )
    """The training loop."""

    @model_validator(mode="after")
    def _crops_are_whole_tokens(self) -> Settings:
        factor = self.network.factor
        if self.data.crop % factor:
            raise Conflict(
                f"data.crop={self.data.crop}: not a multiple of {factor}",
                f"Give a multiple of {factor}, the side of a token",
            )
        return self


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: frames, VQGAN, objective. Raises UserError.

    request.init: weights of the same sizes.
    """
    samples = read_index(request.shards)
    ids = [str(sample.meta.get("id")) for sample in samples]
    train, held_out = order.hold_out(samples, ids, settings.data.held_out)
    frames = [(sample, name) for sample in train for name in sample.frames]
    if not held_out:
        raise UserError(
            "all samples are of one id, none is left to validate on", "Give more shards"
        )
    request.console.print(
        f"{len(frames):,} frames of {len(train):,} pairs, {len(held_out):,} pairs held out"
    )
    validated = HeldOut(held_out, settings.data.validation_frames, settings.network.factor)
    objective = VqganObjective(
        settings.network,
        settings.weights,
        validated,
        request.device,
        settings.loop.weight_decay,
    )
    if request.init is not None:
        _start_from(objective, request.init)
    keys = [sample.key for sample in train]
    source = StatelessSource(partial(_batch, frames, settings), keys)
    return Task(objective, source, len(frames), {"samples": describe(samples, train)})


@dataclass(frozen=True)
class HeldOut:
    """Whole held-out frames one by one, as tensors [1, 3, H, W], cut to multiples of `factor`.

    Attributes:
        most: How many; they are spread over all samples, and over all places in a sample.
    """

    samples: Sequence[Sample]
    most: int
    factor: int

    def frames(self) -> list[Frame]:
        """The frames, in their order."""
        frames = [(sample, name) for sample in self.samples for name in sample.frames]
        return order.sample(frames, [f"{s.key}/{name}" for s, name in frames], self.most)

    def __iter__(self) -> Iterator[Tensor]:
        for sample, name in self.frames():
            image = sample.image(name)
            height, width = (side // self.factor * self.factor for side in image.shape[:2])
            yield _tensor(image[None, :height, :width])


def _start_from(objective: VqganObjective, init: Path) -> None:
    other, _ = VQGAN.from_tensors(read_tensors(run_folder.weights_file(init)))
    if other.config != objective.network.config:
        raise UserError(
            f"{init}: another network, {other.config!r}", "Give its sizes with --set network.…"
        )
    objective.network.load_state_dict(other.state_dict())
    objective.usage += 1  # its codes are in use


def _batch(frames: Sequence[Frame], settings: Settings, step: int) -> Tensor:
    loop = settings.loop
    numbers = order.items_of_step(step, loop.batch_size, len(frames), loop.seed)
    crops = []
    for place, number in enumerate(numbers):
        sample, name = frames[number]
        rng = order.rng_of(loop.seed, step, place)
        crops.append(_crop(sample.image(name), settings.data, rng))
    return _tensor(np.stack(crops))


def _crop(image: np.ndarray, data: Data, rng: np.random.Generator) -> np.ndarray:
    """A random square of `data.crop` px; smaller images are enlarged to it first."""
    side = data.crop
    short = min(image.shape[:2])
    if short < side:
        scale = side / short
        size = tuple(max(side, round(s * scale)) for s in image.shape[1::-1])
        image = cv2.resize(image, size, interpolation=cv2.INTER_CUBIC)
    top, left = (int(rng.integers(0, extent - side + 1)) for extent in image.shape[:2])
    cut = image[top : top + side, left : left + side]
    return cut[:, ::-1] if data.flip and rng.random() < 0.5 else cut


def _tensor(images: np.ndarray) -> Tensor:
    pixels = torch.tensor(np.ascontiguousarray(images)).permute(0, 3, 1, 2)
    return pixels.float() / 255


def card(file: Path, samples: list[Sample]) -> dict[str, Any]:
    """Scores of a packed VQGAN on samples, and the keys of those that were measured."""
    network, _, _ = networks.vqgan(str(file))
    held_out = HeldOut(samples, 200, network.config.factor)
    with torch.inference_mode():
        metrics, _ = measure(network, held_out, "cpu")
    frames = held_out.frames()
    keys = sorted({sample.key for sample, _ in frames})
    codes = network.config.codes
    kind = "rendered pairs" if all(s.meta.get("facts") for s in samples) else "pairs"
    return {
        "about": f"A VQGAN: {network.config.factor}× smaller along a side, {codes} codes.",
        "measured_on": f"On {len(frames)} whole frames, ends and interpolated ones, of "
        f"{len(keys)} {kind}",
        "keys": keys,
        "measures": {
            "PSNR": f"{metrics['psnr']:.2f} dB",
            "mean absolute error": f"{metrics['absolute']:.4f} of the range",
            "codes used": f"{round(metrics['used'] * codes)} of {codes}",
            "perplexity": f"{metrics['perplexity']:.1f}",
        },
        "remarks": "",
    }
