"""Features of a frozen backbone in training shards: their source, and how their channels vary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from torch import Tensor

from cc_prep.errors import UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import Features
from cc_train.data.collate import NO_FEATURES, FeatureSource, require_backbone
from cc_train.data.shard_index import ADVICE, Entry

SAMPLES = 300
MIN_DEVIATION = 1e-4
NONE_READ = "not one sample of these shards can be read"


@dataclass(frozen=True)
class Statistics:
    """Statistics of each channel over images, float64 [C]; deviations are at least MIN_DEVIATION.

    Attributes:
        mean, std: Over all places of all images.
        spread: The standard deviation of image means.
    """

    mean: Tensor
    std: Tensor
    spread: Tensor


def compute(
    entries: Sequence[Entry],
    backbone: FeatureSource | None,
    console: Console,
    prepare: Callable[[Tensor], Tensor] = lambda values: values,
) -> Statistics:
    """The statistics over samples spread evenly over the data.

    Args:
        backbone: The backbone of the features; None for any.
        prepare: A function that is applied to the features [N, C, h, w] of a sample first. Samples
            that cannot be read are left out: the training decides how many may be
            (`stream.skip_bad`).

    Raises:
        UserError: If none can be read, or one holds features of another backbone.
    """
    step = max(1, len(entries) // SAMPLES)
    sums: dict[str, Tensor] = {}
    with console.status("reading features for their mean and deviation"):
        for entry in entries[::step]:
            features = read_features(entry)
            if features is None:
                continue
            require_backbone(entry.key, features, backbone)
            values = prepare(torch.from_numpy(features.values)).double()
            means = values.mean((2, 3))
            parts = {
                "images": torch.tensor(float(len(values))),
                "mean": means.sum(0),
                "square": values.square().mean((2, 3)).sum(0),
                "square of means": means.square().sum(0),
            }
            sums = {name: sums.get(name, 0) + part for name, part in parts.items()}
    if not sums:
        raise UserError(NONE_READ, ADVICE)
    count = sums.pop("images")
    mean, square, square_of_means = (total / count for total in sums.values())
    std, spread = (
        (total - mean**2).clamp(min=0).sqrt() + MIN_DEVIATION for total in (square, square_of_means)
    )
    return Statistics(mean, std, spread)


def first_features(entries: Sequence[Entry]) -> Features:
    """Features of the first sample that can be read.

    Raises:
        UserError: If none can.
    """
    for entry in entries:
        features = read_features(entry)
        if features is not None:
            return features
    raise UserError(NONE_READ, ADVICE)


def read_features(entry: Entry) -> Features | None:
    """A sample's features; None where it cannot be read.

    Raises:
        UserError: Where it has none.
    """
    try:
        features = entry.read().features
    except (DamagedShard, FileNotFoundError):
        return None
    if features is None:
        raise UserError(f"{entry.shard}: {entry.key} holds no features", NO_FEATURES)
    return features
