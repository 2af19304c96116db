"""`cc-train vqgan`: frames of sequence shards → a VQGAN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.settings import Section
from cc_train.data import order
from cc_train.data.sequence_index import Sample, about, read_index
from cc_train.data.stream import Plain
from cc_train.systems.vqgan.objective import Network, VqganObjective, Weights
from cc_train.training.loop import Loop, fit, pick_device

Frame = tuple[Sample, str]


class Data(Section):
    """What is trained on: square crops of `crop` px of all frames.

    held_out: share of the ids kept for validation; validation_frames: so many of their frames are
        looked at, whole.
    """

    crop: int = Field(112, ge=16)
    flip: bool = True
    held_out: float = Field(0.05, gt=0, lt=1)
    validation_frames: int = Field(64, ge=1)


class Settings(Section):
    """All settings of `cc-train vqgan`."""

    network: Network = Network()
    weights: Weights = Weights()
    data: Data = Data()
    loop: Annotated[Loop, Field()] = Loop(
        steps=5000, learning_rate=4e-4, betas=(0.5, 0.9), average=0.998, precision="bfloat16"
    )


def train(
    settings: Settings,
    shards: Sequence[str],
    run: Path,
    init: Path | None,
    resume: str,
    console: Console,
) -> dict[str, float]:
    """Trains into `run`; the last validation's figures. Raises UserError and JobFailed."""
    if settings.loop.threads:
        torch.set_num_threads(settings.loop.threads)
    samples = read_index(shards)
    train, held_out = order.hold_out(
        samples, [str(s.meta.get("id")) for s in samples], settings.data.held_out
    )
    frames = [(sample, name) for sample in train for name in sample.frames]
    if not frames:
        raise UserError("all samples are of one id, none is left to train on", "Give more shards")
    console.print(
        f"{len(frames):,} frames of {len(train):,} pairs, {len(held_out):,} pairs held out",
        highlight=False,
    )
    factor = 2 ** (len(settings.network.multipliers) - 1)
    if settings.data.crop % factor:
        raise UserError(f"data.crop={settings.data.crop}: not a multiple of {factor}")
    looked_at = HeldOut(held_out, settings.data.validation_frames, factor)
    torch.manual_seed(settings.loop.seed)
    objective = VqganObjective(
        settings.network, settings.weights, looked_at, pick_device(settings.loop)
    )
    if init is not None:
        _start_from(objective, init)
    everything = {
        "kind": "vqgan",
        "samples": about(samples, train),
        **settings.model_dump(mode="json"),
    }
    batch = partial(_batch, frames, settings)
    return fit(objective, Plain(batch), settings.loop, everything, run, resume, console)


@dataclass(frozen=True)
class HeldOut:
    """Whole held-out frames one by one, as tensors [1, 3, H, W], cut to multiples of `factor`."""

    samples: Sequence[Sample]
    most: int
    factor: int

    def __iter__(self) -> Iterator[Tensor]:
        frames = [(sample, name) for sample in self.samples for name in sample.frames]
        step = max(1, len(frames) // self.most)
        for sample, name in frames[::step][: self.most]:
            image = sample.image(name)
            height, width = (side // self.factor * self.factor for side in image.shape[:2])
            yield _tensor(image[None, :height, :width])


def _start_from(objective: VqganObjective, init: Path) -> None:
    from cc_prep.models.vqgan import VQGAN
    from cc_prep.weights.registry import read_tensors

    other, _ = VQGAN.from_tensors(read_tensors(init))
    if other.config != objective.network.config:
        raise UserError(
            f"{init}: another network, {other.config}", "Give its sizes with --set network.…"
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
