"""Captions of the samples of training shards, by any captioner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_train.captioner import Caption, Captioner, Inputs
from cc_train.data.collate import before_after
from cc_train.data.shard_index import ADVICE, Entry

BATCH = 32


def predict(
    captioner: Captioner, entries: Sequence[Entry], beams: int = 1, swapped: bool = False
) -> Iterator[tuple[str, Caption]]:
    """Key and caption of every sample, in order. Raises UserError for one that cannot be read.

    swapped: captions of (after, before).
    """
    for start in range(0, len(entries), BATCH):
        part = entries[start : start + BATCH]
        pairs = torch.from_numpy(np.stack([_read(entry, captioner.inputs) for entry in part]))
        pairs = pairs.flip(1) if swapped else pairs
        captions = captioner.caption(pairs.to(captioner.device), beams)
        yield from zip([entry.key for entry in part], captions, strict=True)


def _read(entry: Entry, inputs: Inputs) -> np.ndarray:
    try:
        return before_after(entry.read(), inputs.reads)
    except (DamagedShard, FileNotFoundError) as error:
        raise UserError(f"{entry.shard}: {error}", ADVICE) from None
