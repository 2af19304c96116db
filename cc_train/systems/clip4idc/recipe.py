"""`cc-train clip4idc`: pairs and captions of sequence shards → a CLIP4IDC."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from pydantic import Field
from rich.console import Console
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models import clip_tokenizer
from cc_prep.models.clip4idc import CLIP4IDC
from cc_prep.records import NO_CHANGE
from cc_prep.settings import Section
from cc_prep.steps.scoring import normalize
from cc_train.data import order
from cc_train.data.sequence_index import Sample, about, read_index
from cc_train.data.stream import Plain
from cc_train.systems.clip4idc.objective import Clip4idcObjective, Network, from_clip, from_scratch
from cc_train.training.loop import Loop, fit, pick_device

SWAPPED = {"left": "right", "right": "left"}


class Data(Section):
    """What is trained on: the ends of each sequence with one of its captions, drawn anew.

    mirror: half of the pairs are mirrored, with "left" and "right" exchanged in their captions.
    shift: both images are moved by up to so many px together. blur: up to this deviation in px.
    no_change: share of the pairs without change that is trained on.
    """

    mirror: bool = False
    shift: int = Field(0, ge=0)
    blur: float = Field(0.0, ge=0)
    no_change: float = Field(1.0, ge=0, le=1)
    held_out: float = Field(0.05, gt=0, lt=1)
    validation_pairs: int = Field(500, ge=2)


class Settings(Section):
    """All settings of `cc-train clip4idc`. clip_rate: see Clip4idcObjective; --init only."""

    network: Network = Network()
    data: Data = Data()
    clip_rate: float = Field(1e-3, gt=0)
    loop: Loop = Loop(
        steps=2000,
        batch_size=64,
        learning_rate=5e-4,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup=200,
        precision="bfloat16",
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
    samples = [sample for sample in read_index(shards) if sample.meta.get("captions")]
    ids = [str(sample.meta.get("id")) for sample in samples]
    if len(set(ids)) < 2:
        raise UserError("fewer than two captioned pairs", "Give shards of a captioned data set")
    train, held_out = order.hold_out(samples, ids, settings.data.held_out)
    train = _fewer_still(train, settings.data.no_change)
    console.print(f"{len(train):,} pairs, {len(held_out):,} held out", highlight=False)
    torch.manual_seed(settings.loop.seed)
    network, rate = from_scratch(settings.network), 1.0
    _forget_unseen_words(network, train)
    if init is not None:
        from cc_prep.weights.registry import read_tensors

        network = from_clip(read_tensors(init), settings.network.intra_layers)
        rate = settings.clip_rate
    objective = Clip4idcObjective(
        network,
        HeldOut(held_out, settings.data.validation_pairs, network.config.resolution),
        settings.loop.weight_decay,
        rate,
        pick_device(settings.loop),
    )
    everything = {
        "kind": "clip4idc",
        "samples": about(samples, train),
        **settings.model_dump(mode="json"),
    }
    batch = partial(_batch, train, settings, network.config.resolution)
    return fit(objective, Plain(batch), settings.loop, everything, run, resume, console)


def _forget_unseen_words(network: CLIP4IDC, samples: Sequence[Sample]) -> None:
    """Zeroes the words that no caption has: they get no gradient, and would stay noise."""
    said = {str(caption) for sample in samples for caption in sample.meta["captions"]}
    seen = {token for caption in said for token in clip_tokenizer.encode(caption)}
    seen |= {clip_tokenizer.START, clip_tokenizer.END, clip_tokenizer.PAD}
    kept = torch.zeros(len(network.token_embedding.weight), 1)
    kept[sorted(seen)] = 1
    network.token_embedding.weight.data.mul_(kept)


def _fewer_still(samples: Sequence[Sample], share: float) -> list[Sample]:
    """All pairs that changed, and a share of the others, evenly spread."""
    still = [sample.meta.get("kind") == NO_CHANGE for sample in samples]
    wanted = round(share * sum(still))
    met = list(itertools.accumulate(still))
    return [
        sample
        for sample, stood, number in zip(samples, still, met, strict=True)
        if not stood or number * wanted // met[-1] > (number - 1) * wanted // met[-1]
    ]


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs that changed, each with its first caption, in batches."""

    samples: Sequence[Sample]
    most: int
    resolution: int

    def __iter__(self) -> Iterator[dict[str, Any]]:
        changed = [s for s in self.samples if s.meta.get("kind") != NO_CHANGE] or self.samples
        chosen = changed[: self.most]
        for start in range(0, len(chosen), 32):
            part = chosen[start : start + 32]
            said = [str(sample.meta["captions"][0]) for sample in part]
            yield collate([ends(sample) for sample in part], said, self.resolution)


def ends(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Before and after, uint8 [H, W, 3]."""
    names = sample.frames
    return sample.image(names[0]), sample.image(names[-1])


def collate(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], said: list[str], resolution: int
) -> dict[str, Any]:
    """Images and captions as the network takes them, and the captions themselves."""
    before, after = zip(*pairs, strict=True)
    return {
        "before": normalize(before, resolution),
        "after": normalize(after, resolution),
        "tokens": torch.tensor(clip_tokenizer.batch(said)),
        "captions": said,
    }


def _batch(samples: Sequence[Sample], settings: Settings, resolution: int, step: int) -> Any:
    loop = settings.loop
    numbers = order.items_of_step(step, loop.batch_size, len(samples), loop.seed)
    chosen = [samples[number] for number in numbers]
    pairs, said = [], []
    for place, sample in enumerate(chosen):
        rng = order.rng_of(loop.seed, step, place)
        captions = sample.meta["captions"]
        caption = str(captions[rng.integers(len(captions))])
        pair, caption = _varied(ends(sample), caption, settings.data, rng)
        pairs.append(pair)
        said.append(caption)
    batch = collate(pairs, said, resolution)
    del batch["captions"]
    return {**batch, "positives": positives(said, [sample.meta for sample in chosen])}


def positives(said: Sequence[str], metas: Sequence[Mapping[str, Any]]) -> Tensor:
    """Whether caption i is true of pair j: its own, the same sentence, or both without change."""
    still = [meta.get("kind") == NO_CHANGE for meta in metas]
    same = [
        [said[i] == said[j] or (still[i] and still[j]) for j in range(len(said))]
        for i in range(len(said))
    ]
    return torch.tensor(same)


def _varied(
    pair: tuple[np.ndarray, np.ndarray], caption: str, data: Data, rng: np.random.Generator
) -> tuple[tuple[np.ndarray, np.ndarray], str]:
    """A pair changed as both its images may be without making the caption untrue."""
    before, after = pair
    if data.shift:
        dx, dy = (int(v) for v in rng.integers(-data.shift, data.shift + 1, 2))
        before, after = (_moved(image, dx, dy) for image in (before, after))
    if data.blur:
        deviation = float(rng.uniform(0, data.blur))
        if deviation > 0.1:
            before, after = (cv2.GaussianBlur(x, (0, 0), deviation) for x in (before, after))
    if data.mirror and rng.random() < 0.5:
        before, after = before[:, ::-1], after[:, ::-1]
        caption = re.sub(r"\b(left|right)\b", lambda m: SWAPPED[m[0]], caption)
    return (np.ascontiguousarray(before), np.ascontiguousarray(after)), caption


def _moved(image: np.ndarray, dx: int, dy: int) -> np.ndarray:
    """The image moved by whole px; its border is repeated."""
    shape = np.array([[1, 0, dx], [0, 1, dy]], np.float32)
    size = (image.shape[1], image.shape[0])
    return cv2.warpAffine(image, shape, size, borderMode=cv2.BORDER_REPLICATE)
