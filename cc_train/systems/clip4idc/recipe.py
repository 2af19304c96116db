"""`cc-train clip4idc`: pairs and captions of sequence shards → a CLIP4IDC."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models import clip_tokenizer
from cc_prep.models.clip4idc import CLIP4IDC, Config
from cc_prep.records import NO_CHANGE, Facts
from cc_prep.settings import Section
from cc_prep.weights import read_tensors
from cc_train.data import order, shard_index
from cc_train.data.mirroring import exchange_sides
from cc_train.data.sequence_index import Sample, describe, read_index
from cc_train.data.stream import StatelessSource
from cc_train.distributed import Ranks
from cc_train.systems.clip4idc import known_facts
from cc_train.systems.clip4idc.batches import HeldOut, before_after, collate
from cc_train.systems.clip4idc.card import card, compact
from cc_train.systems.clip4idc.objective import Clip4idcObjective, Network, from_clip, from_scratch
from cc_train.training import runs
from cc_train.training.fact_losses import FactLosses
from cc_train.training.settings import Loop
from cc_train.training.task import Request, Task

__all__ = ["Settings", "card", "compact", "prepare"]


class Data(Section):
    """What is trained on: the ends of each sequence with one of its captions, drawn anew.

    mirror: half of the pairs are mirrored, and their captions say the other side, as
    `exchange_sides` exchanges it.
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
    """All settings of `cc-train clip4idc`. clip_lr_scale: see Clip4idcObjective; --init only.

    facts: weights of the losses of what a renderer knows, see `known_facts`; null learns captions
    alone, as the paper. Pairs of which nothing is known are asked nothing; it is refused where all
    are such.
    """

    network: Network = Network()
    data: Data = Data()
    clip_lr_scale: float = Field(1e-3, gt=0)
    facts: FactLosses | None = None
    loop: Loop = Loop(
        steps=2000,
        batch_size=64,
        learning_rate=5e-4,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup_steps=200,
        precision="bfloat16",
    )


def prepare(settings: Settings, request: Request) -> Task:
    """A CLIP4IDC to be trained. Raises UserError. request.init: CLIP's or CLIP4IDC's weights."""
    samples = [sample for sample in read_index(request.shards) if sample.meta.get("captions")]
    ids = [str(sample.meta.get("id")) for sample in samples]
    if len(set(ids)) < 2:
        raise UserError("fewer than two captioned pairs", "Give shards of a captioned data set")
    train, held_out = order.hold_out(samples, ids, settings.data.held_out)
    train = _fewer_unchanged(train, settings.data.no_change)
    if settings.facts is not None:
        _check_facts(train)
    request.console.print(f"{len(train):,} pairs, {len(held_out):,} held out", highlight=False)
    network, scale = from_scratch(settings.network), 1.0
    _forget_unseen_words(network, train)
    if request.init is not None:
        network = from_clip(
            read_tensors(runs.weights_file(request.init)), settings.network.intra_layers
        )
        scale = settings.clip_lr_scale
    objective = Clip4idcObjective(
        network,
        HeldOut(held_out, settings.data.validation_pairs, network.config.resolution),
        settings.loop.weight_decay,
        scale,
        request.device,
        request.ranks,
        settings.facts,
    )
    batch = partial(_batch, train, settings, network.config, request.ranks)
    about = {"samples": describe(samples, train)}
    source = StatelessSource(batch, [sample.key for sample in train])
    return Task(objective, source, len(train), about)


def _check_facts(samples: Sequence[Sample]) -> None:
    """Raises UserError for facts of another form, and where no pair has any."""
    known = [shard_index.facts_of({**sample.meta, "key": sample.key}) for sample in samples]
    if not any(facts is not None for facts in known):
        raise UserError(
            "facts: none of these pairs says what truly changed",
            "Give sequence shards of scenes that `cc-prep synth` rendered, or set facts=null",
        )


def _forget_unseen_words(network: CLIP4IDC, samples: Sequence[Sample]) -> None:
    """Zeroes the words that no caption has: they get no gradient, and would stay noise."""
    captions = {str(caption) for sample in samples for caption in sample.meta["captions"]}
    tokens = {token for caption in captions for token in clip_tokenizer.encode(caption)}
    tokens |= {clip_tokenizer.START, clip_tokenizer.END, clip_tokenizer.PAD}
    mask = torch.zeros(len(network.token_embedding.weight), 1)
    mask[sorted(tokens)] = 1
    network.token_embedding.weight.data.mul_(mask)


def _fewer_unchanged(samples: Sequence[Sample], share: float) -> list[Sample]:
    """All pairs that changed, and a share of the others, evenly spread."""
    unchanged = [sample.meta.get("kind") == NO_CHANGE for sample in samples]
    target = round(share * sum(unchanged))
    numbers = list(itertools.accumulate(unchanged))
    return [
        sample
        for sample, still, number in zip(samples, unchanged, numbers, strict=True)
        if not still or number * target // numbers[-1] > (number - 1) * target // numbers[-1]
    ]


def _batch(
    samples: Sequence[Sample], settings: Settings, sizes: Config, ranks: Ranks, step: int
) -> dict[str, Any]:
    """This rank's part of a step's batch, and which captions of the whole are true of which pairs.

    All ranks' batches side by side are what one process with as large a batch has.
    """
    loop = settings.loop
    numbers = order.items_of_step(step, loop.batch_size * ranks.world, len(samples), loop.seed)
    chosen = [samples[number] for number in numbers]
    captions, variations = [], []
    for place, sample in enumerate(chosen):
        rng = order.rng_of(loop.seed, step, place)
        texts = sample.meta["captions"]
        caption = str(texts[rng.integers(len(texts))])
        variations.append(Variation.draw(settings.data, rng))
        captions.append(variations[-1].of_caption(caption))
    own = slice(ranks.rank * loop.batch_size, (ranks.rank + 1) * loop.batch_size)
    images = [before_after(sample) for sample in chosen[own]]
    pairs = [
        variation.of_pair(*ends) for ends, variation in zip(images, variations[own], strict=True)
    ]
    batch = collate(pairs, captions[own], sizes.resolution)
    del batch["captions"]
    batch["positives"] = positives(captions, [sample.meta for sample in chosen])
    if settings.facts is None:
        return batch
    known = [
        variation.of_facts(sample, before.shape)
        for sample, variation, (before, _) in zip(chosen[own], variations[own], images, strict=True)
    ]
    side = sizes.resolution // sizes.patch
    return {**batch, **known_facts.batch_of(known, (side, side))}


def positives(captions: Sequence[str], metas: Sequence[Mapping[str, Any]]) -> Tensor:
    """Whether caption i is true of pair j: its own, the same sentence, or both without change."""
    unchanged = [meta.get("kind") == NO_CHANGE for meta in metas]
    count = len(captions)
    same = [
        [captions[i] == captions[j] or (unchanged[i] and unchanged[j]) for j in range(count)]
        for i in range(count)
    ]
    return torch.tensor(same)


@dataclass(frozen=True)
class Variation:
    """A change of both images of a pair after which its caption is still true.

    dx, dy: both images are moved by so many px. blur: deviation in px. mirror: left and right are
    exchanged, in the caption too.
    """

    dx: int = 0
    dy: int = 0
    blur: float = 0.0
    mirror: bool = False

    @classmethod
    def draw(cls, data: Data, rng: np.random.Generator) -> Variation:
        """A random variation within the settings."""
        dx = dy = 0
        if data.shift:
            dx, dy = (int(v) for v in rng.integers(-data.shift, data.shift + 1, 2))
        blur = float(rng.uniform(0, data.blur)) if data.blur else 0.0
        mirror = bool(data.mirror and rng.random() < 0.5)
        return cls(dx, dy, blur, mirror)

    def of_caption(self, caption: str) -> str:
        """The caption of the varied pair."""
        return exchange_sides(caption) if self.mirror else caption

    def of_facts(self, sample: Sample, shape: Sequence[int]) -> Facts | None:
        """What is known of the varied pair. Raises UserError for facts of another form.

        shape: of its images, [H, W, 3].
        """
        facts = shard_index.facts_of({**sample.meta, "key": sample.key})
        if facts is None:
            return None
        height, width = shape[:2]
        return known_facts.moved(facts, (self.dx / width, self.dy / height), self.mirror)

    def of_pair(self, before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both images, uint8 [H, W, 3]."""
        if self.dx or self.dy:
            before, after = (_moved(image, self.dx, self.dy) for image in (before, after))
        if self.blur > 0.1:
            before, after = (cv2.GaussianBlur(x, (0, 0), self.blur) for x in (before, after))
        if self.mirror:
            before, after = before[:, ::-1], after[:, ::-1]
        return np.ascontiguousarray(before), np.ascontiguousarray(after)


def _moved(image: np.ndarray, dx: int, dy: int) -> np.ndarray:
    """The image moved by whole px; its border is repeated."""
    shape = np.array([[1, 0, dx], [0, 1, dy]], np.float32)
    size = (image.shape[1], image.shape[0])
    return cv2.warpAffine(image, shape, size, borderMode=cv2.BORDER_REPLICATE)
