"""`cc-train clip4idc`: pairs and captions of sequence shards → a CLIP4IDC."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.models import clip
from cc_prep.models.clip4idc import CLIP4IDC, Config
from cc_prep.records import NO_CHANGE, Facts
from cc_prep.settings import Section
from cc_prep.weights import networks, read_tensors
from cc_train.data import order
from cc_train.data.sequence_index import Sample, describe, read_index
from cc_train.data.stream import StatelessSource
from cc_train.distributed import Ranks
from cc_train.runs import run_folder
from cc_train.systems.clip4idc import known_facts, variation
from cc_train.systems.clip4idc.batches import HeldOut, before_after, collate
from cc_train.systems.clip4idc.card import card, compact
from cc_train.systems.clip4idc.objective import Clip4idcObjective, Network, from_clip, from_scratch
from cc_train.systems.clip4idc.variation import Data
from cc_train.training.fact_losses import FactLosses
from cc_train.training.settings import Loop
from cc_train.training.task import Task, TrainingRequest

__all__ = ["Settings", "card", "compact", "prepare"]


class Settings(Section):
    """All settings of `cc-train clip4idc`."""

    network: Network = Network()
    """Sizes of the network, without --init."""
    data: Data = Data()
    """The training data."""
    clip_lr_scale: float = Field(1e-3, gt=0)
    """With --init: the learning rate of what plain CLIP has, in units of the others'."""
    facts: FactLosses | None = None
    """Weights of the losses of a renderer's knowledge; null learns captions alone, as in the paper.
    Shards without any facts are refused."""
    loop: Loop = Loop(
        steps=2000,
        batch_size=64,
        learning_rate=5e-4,
        betas=(0.9, 0.98),
        weight_decay=0.1,
        warmup_steps=200,
        precision="bfloat16",
    )
    """The training loop."""


def prepare(settings: Settings, request: TrainingRequest) -> Task:
    """The training task: data, CLIP4IDC, objective. Raises UserError.

    request.init: weights of CLIP or of CLIP4IDC.
    """
    samples = [sample for sample in read_index(request.shards) if sample.meta.get("captions")]
    ids = [str(sample.meta.get("id")) for sample in samples]
    if len(set(ids)) < 2:
        raise UserError("fewer than two captioned pairs", "Give shards of a captioned data set")
    train, held_out = order.hold_out(samples, ids, settings.data.held_out)
    train = _fewer_unchanged(train, settings.data.no_change)
    if settings.facts is not None:
        _check_facts(train)
    request.console.print(f"{len(train):,} pairs, {len(held_out):,} held out")
    network = _start(settings.network, request.init)
    sizes = settings.network.model_copy(update={"intra_layers": network.config.intra_layers})
    if request.init is None:
        _forget_unseen_words(network, train, settings.data)
    objective = Clip4idcObjective(
        network,
        HeldOut(held_out, settings.data.validation_pairs, network.config),
        weight_decay=settings.loop.weight_decay,
        clip_lr_scale=1.0 if request.init is None else settings.clip_lr_scale,
        device=request.device,
        ranks=request.ranks,
        facts=settings.facts,
    )
    batch = partial(_batch, train, settings, network.config, request.ranks)
    about = {"samples": describe(samples, train)}
    source = StatelessSource(batch, [sample.key for sample in train])
    resolved = settings.model_copy(update={"network": sizes})
    return Task(objective, source, len(train), about, settings=resolved)


def _start(sizes: Network, init: Path | None) -> CLIP4IDC:
    """The network before its first step; `Network` says how many blocks see one image alone.

    Raises UserError.
    """
    if init is None:
        network = from_scratch(sizes)
    else:
        file, asked = run_folder.weights_file(init), sizes.intra_layers
        tensors = read_tensors(file)
        trained = networks.trained_intra_layers(file)
        if trained is not None and asked not in (None, trained):
            raise UserError(
                f"{init} was trained with network.intra_layers={trained}, not {asked}",
                "Leave network.intra_layers out",
            )
        network = from_clip(tensors, asked or trained or networks.REFERENCE_INTRA_LAYERS)
    alone, blocks = network.config.intra_layers, network.config.vision_layers
    if alone >= blocks:
        raise UserError(
            f"network.intra_layers={alone}: there are {blocks} visual blocks, of which the last "
            "ones see both images",
            f"Give 1 to {blocks - 1}",
        )
    return network


def _check_facts(samples: Sequence[Sample]) -> None:
    """Raises UserError for facts of another form, and where no pair has any."""
    known = [Facts.of_sample({**sample.meta, "key": sample.key}) for sample in samples]
    if not any(facts is not None for facts in known):
        raise UserError(
            "facts: none of these pairs says what truly changed",
            "Give sequence shards of scenes that `cc-prep synth` rendered, or set facts=null",
        )


def _forget_unseen_words(network: CLIP4IDC, samples: Sequence[Sample], data: Data) -> None:
    """Sets words that occur in no caption to zero: they get no gradient, and would stay noise."""
    captions = {caption for sample in samples for caption in variation.captions_of(sample, data)}
    tokens = {token for caption in captions for token in clip.token_ids(caption)}
    tokens |= {clip.START_TOKEN, clip.END_TOKEN, clip.PAD_TOKEN}
    mask = torch.zeros(len(network.token_embedding.weight), 1)
    mask[sorted(tokens)] = 1
    network.token_embedding.weight.data.mul_(mask)


def _fewer_unchanged(samples: Sequence[Sample], share: float) -> list[Sample]:
    """All changed pairs, and a share of the unchanged ones, evenly spread."""
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

    The batches of all ranks, joined, equal the batch of a single process.
    """
    loop = settings.loop
    numbers = order.items_of_step(step, loop.batch_size * ranks.world, len(samples), loop.seed)
    chosen = [samples[number] for number in numbers]
    variations, captions = zip(
        *(
            variation.draw(sample, settings.data, order.rng_of(loop.seed, step, place))
            for place, sample in enumerate(chosen)
        ),
        strict=True,
    )
    own = slice(ranks.rank * loop.batch_size, (ranks.rank + 1) * loop.batch_size)
    images = [before_after(sample) for sample in chosen[own]]
    pairs = [varied.of_pair(*ends) for ends, varied in zip(images, variations[own], strict=True)]
    batch = collate(pairs, list(captions[own]), sizes)
    del batch["captions"]
    batch["positives"] = positives(captions, [sample.meta for sample in chosen])
    if settings.facts is None:
        return batch
    known = [
        varied.of_facts(sample, before.shape)
        for sample, varied, (before, _) in zip(chosen[own], variations[own], images, strict=True)
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
