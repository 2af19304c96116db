"""Captions of the samples of training shards, by any captioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_train.captioner import Caption, Captioner, Inputs
from cc_train.data.collate import before_after, stack
from cc_train.data.shard_index import ADVICE, Entry

BATCH = 32


def predict(
    captioner: Captioner, entries: Sequence[Entry], beams: int = 1, swapped: bool = False
) -> Iterator[tuple[str, Caption]]:
    """Key and caption of every sample, in order.

    Images are resized to the captioner's `inputs.size`. swapped: captions of (after, before).
    Raises UserError for a sample that cannot be read, or does not hold what the captioner reads.
    """
    for start in range(0, len(entries), BATCH):
        part = entries[start : start + BATCH]
        samples = [_read(entry) for entry in part]
        arrays = [_input(sample, captioner.inputs) for sample in samples]
        pairs = torch.from_numpy(stack(samples, arrays))
        pairs = pairs.flip(1) if swapped else pairs
        captions = captioner.caption(pairs.to(captioner.device), beams)
        yield from zip([entry.key for entry in part], captions, strict=True)


def _read(entry: Entry) -> TrainingSample:
    try:
        return entry.read()
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None


def _input(sample: TrainingSample, inputs: Inputs) -> np.ndarray:
    """What a captioner reads of a sample. Raises UserError for features of another backbone."""
    array = before_after(sample, inputs.reads, inputs.size)
    features = sample.features if inputs.reads == "features" else None
    if features is not None and inputs.backbone not in (None, features.sha256):
        raise UserError(
            f"{sample.key} holds features of {features.backbone} (SHA-256 "
            f"{features.sha256[:12]}…), which is not the backbone of the captioner",
            "Build these shards anew with the features that the captioner was trained on",
        )
    return array
