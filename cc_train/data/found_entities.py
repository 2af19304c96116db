"""Entities that `cc-prep entities` found in a pair: names of things that may have changed."""

from __future__ import annotations

from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample


def entities(sample: TrainingSample, count: int) -> list[str]:
    """The names of at most `count` entities that were found, best first.

    Raises:
        DamagedShard: For a list of another form.
    """
    listed = sample.meta.get("entities") or []
    try:
        names = [name for name, _ in listed[:count]]
    except (TypeError, ValueError):
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise DamagedShard(f"{sample.key}: its entities are {str(listed)[:60]}")
    return [str(name) for name in names]
