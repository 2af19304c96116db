"""What was found to have changed in a pair, without being told: a mask, and names of things.

`cc-prep changes` and `cc-prep entities` put it into training shards. The true masks of rendered
data are another thing (`TrainingSample.mask`), and stand elsewhere.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample


def mask(sample: TrainingSample) -> np.ndarray | None:
    """uint8 [H, W], 1 where something was found to have changed; None where nothing was.

    Raises DamagedShard for one of another form.
    """
    change: Any = getattr(sample, "change", None)
    found_mask = change() if callable(change) else None
    if found_mask is None:
        return None
    array = np.asarray(found_mask)
    if array.ndim != 2:
        raise DamagedShard(f"{sample.key}.change.png: {array.ndim} axes, not 2")
    return (array > 0).astype(np.uint8)


def entities(sample: TrainingSample, count: int) -> list[str]:
    """The names of the `count` entities that were found, best first; fewer where there are fewer.

    Raises DamagedShard for a list of another form.
    """
    listed = sample.meta.get("entities") or []
    try:
        names = [name for name, _ in listed[:count]]
    except (TypeError, ValueError):
        names = [None]
    if not all(isinstance(name, str) for name in names):
        raise DamagedShard(f"{sample.key}: its entities are {str(listed)[:60]}")
    return [str(name) for name in names]
