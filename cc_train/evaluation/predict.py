"""Captions of the samples of training shards, by any captioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from rich.console import Console

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_train.captioner import Caption, CaptionModel, Inputs, ReadsEntities
from cc_train.data import found_entities, shard_index
from cc_train.data.collate import FeatureSource, Reads, before_after, stack
from cc_train.data.shard_index import ADVICE, Entry
from cc_train.distributed import ALONE, Ranks

BATCH = 32


def check(entries: Sequence[Entry], inputs: Inputs, console: Console) -> None:
    """Checks the first sample of each shard, before anything is computed.

    Prints a note for shards with features that the captioner does not read, since its own are then
    computed from the stored images.

    Raises:
        UserError: For a shard without anything that it reads.
    """
    if inputs.reads == "tokens":
        shard_index.require_tokenizer(entries, inputs.tokenizer, "the captioner's VQGAN")
        return
    first_entries = shard_index.first_of_shards(entries)
    others = []
    for entry in first_entries:
        try:
            sample = entry.read()
        except (DamagedShard, FileNotFoundError):
            continue  # `predict` names it, or leaves it out
        reads = _reads(sample, inputs)
        with _damage_named(entry):
            before_after(sample, reads, inputs.size)
        if inputs.reads == "features" and reads == "pixels" and sample.features is not None:
            others.append(_stored_features(sample))
    if others:
        console.print(
            f"{len(others)} of {len(first_entries)} shards hold {', '.join(sorted({*others}))}. "
            f"This captioner reads {_own_features(inputs)}, and computes them from the stored "
            "images. This takes longer, and where these are JPEGs, some captions differ",
        )  # fmt: skip


def predict(
    captioner: CaptionModel,
    entries: Sequence[Entry],
    beams: int = 1,
    swapped: bool = False,
    ranks: Ranks = ALONE,
    unreadable: set[str] | None = None,
) -> Iterator[tuple[TrainingSample, Caption]]:
    """Every sample and its caption, in order; each of several ranks yields its own batches.

    Images are resized to the captioner's `inputs.size`.

    Args:
        swapped: Captions of (after, before).
        unreadable: A set to which the keys of samples that cannot be read are added; such samples
            are left out. Without it they raise UserError, as does a sample without what the
            captioner reads.
    """
    inputs = captioner.inputs
    if inputs.reads == "tokens":
        shard_index.require_tokenizer(entries, inputs.tokenizer, "the captioner's VQGAN")
    for start in ranks.own_batches(len(entries), BATCH):
        part, samples = _read(entries[start : start + BATCH], unreadable)
        kinds = [_reads(sample, inputs) for sample in samples]
        captions: dict[str, Caption] = {}
        # Each sample by itself: its caption does not depend on what its neighbours hold.
        for reads in sorted(set(kinds)):
            numbers = [number for number, kind in enumerate(kinds) if kind == reads]
            alike = [samples[number] for number in numbers]
            arrays, names = zip(
                *(_seen(part[number], samples[number], reads, inputs) for number in numbers),
                strict=True,
            )
            pairs = torch.from_numpy(stack(alike, arrays))
            pairs = pairs.flip(1) if swapped else pairs
            spoken = _caption(captioner, pairs.to(captioner.device), beams, names)
            captions |= zip([sample.key for sample in alike], spoken, strict=True)
        yield from ((sample, captions[sample.key]) for sample in samples)


def _caption(
    captioner: CaptionModel, pairs: torch.Tensor, beams: int, names: Sequence[Sequence[str]]
) -> list[Caption]:
    """The captions of pairs; captioners that read entities get those that were found."""
    if not captioner.inputs.entities:
        return captioner.caption(pairs, beams)
    return cast(ReadsEntities, captioner).caption(pairs, beams, names)


def _read(
    entries: Sequence[Entry], unreadable: set[str] | None
) -> tuple[list[Entry], list[TrainingSample]]:
    """The readable entries and their samples; see `predict` for those that cannot be read."""
    part, samples = [], []
    for entry in entries:
        try:
            with _damage_named(entry):
                samples.append(entry.read())
        except UserError:
            if unreadable is None:
                raise
            unreadable.add(entry.key)
        else:
            part.append(entry)
    return part, samples


def _seen(
    entry: Entry, sample: TrainingSample, reads: Reads, inputs: Inputs
) -> tuple[np.ndarray, list[str]]:
    """The input of a captioner: both ends of a sample, and the entities found in it."""
    with _damage_named(entry):  # images are decoded only here
        count = inputs.entities
        names = found_entities.entities(sample, count) if count else []
        return before_after(sample, reads, inputs.size), names


@contextmanager
def _damage_named(entry: Entry) -> Iterator[None]:
    try:
        yield
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None


def _reads(sample: TrainingSample, inputs: Inputs) -> Reads:
    """The kind of input to read from a sample: images if it lacks the features to be read.

    Raises:
        UserError: For a sample that has neither.
    """
    if inputs.reads != "features" or _has_features(sample, inputs):
        return inputs.reads
    images = "no images of before and after"
    if {0, len(sample.tokens) - 1} <= set(sample.images):
        if inputs.takes_images:
            return "pixels"
        images = "the captioner has no weights of the backbone to compute them from images"
    raise UserError(
        f"{sample.key} holds {_stored_features(sample)}, not {_own_features(inputs)}, which the "
        f"captioner reads, and {images}",
        "Rebuild these shards with the features that the captioner was trained on",
    )


def _stored_features(sample: TrainingSample) -> str:
    if sample.features is None:
        return "no features"
    return f"features of {FeatureSource.of(sample.features)} of {_size(sample)} images"


def _own_features(inputs: Inputs) -> str:
    height, width = inputs.size
    return f"those of {inputs.backbone or 'its backbone'} of {width}×{height} images"


def _has_features(sample: TrainingSample, inputs: Inputs) -> bool:
    features, ends = sample.features, {0, len(sample.tokens) - 1}
    if features is None or not ends <= set(features.frames):
        return False
    same_size = _size(sample) == f"{inputs.size[1]}×{inputs.size[0]}"
    return same_size and inputs.backbone in (None, FeatureSource.of(features))


def _size(sample: TrainingSample) -> str:
    return f"{sample.meta.get('width')}×{sample.meta.get('height')}"
