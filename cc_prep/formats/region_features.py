"""Regions as vectors: `region_features/<split>-000000.parquet`, a row a pair, for `entities` alone.

key, id, split, kind   the pair's
phrases                noun phrases of its captions; empty outside the training split
before, after          vectors of its strongest regions in each image, float32 [regions, D]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from cc_prep.formats import tables
from cc_prep.formats.tar import DamagedShard, ShardFormat

_VECTORS = pa.list_(pa.list_(pa.float32()))
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("id", pa.string()),
        ("split", pa.string()),
        ("kind", pa.string()),
        ("phrases", pa.list_(pa.string())),
        ("before", _VECTORS),
        ("after", _VECTORS),
    ]
)


@dataclass(frozen=True)
class RegionRow:
    """A pair's regions as vectors of unit length, float32 [regions, D] each."""

    key: str
    id: str
    split: str
    kind: str
    phrases: tuple[str, ...]
    before: np.ndarray
    after: np.ndarray

    def encode(self) -> dict[str, Any]:
        """A row without its key."""
        row = {name: getattr(self, name) for name in ("id", "split", "kind")}
        vectors = {name: getattr(self, name).tolist() for name in ("before", "after")}
        return {**row, "phrases": list(self.phrases), **vectors}


def decode(key: str, row: Mapping[str, Any]) -> RegionRow:
    """A row as a record.

    Raises:
        DamagedShard: Where its lists do not fit together.
    """
    try:
        before, after = (
            np.array(row[name], np.float32).reshape(len(row[name]), -1 if row[name] else 0)
            for name in ("before", "after")
        )
        id, split, kind = words = [row[name] for name in ("id", "split", "kind")]
        if before.shape != after.shape or not np.isfinite([before, after]).all() or None in words:
            raise ValueError("its vectors or its ids do not fit together")
        return RegionRow(
            key=key,
            id=id,
            split=split,
            kind=kind,
            phrases=tuple(row["phrases"]),
            before=before,
            after=after,
        )
    except (ValueError, TypeError) as error:
        raise DamagedShard(f"{key}: {error}") from None


# A path → a writer with `add(key, row)`; a path → (key, row) in order.
write_shard = partial(tables.write_table, schema=SCHEMA)
read_shard = partial(tables.read_table, schema=SCHEMA)


def read(path: str) -> Iterator[RegionRow]:
    """The records of a shard. Raises DamagedShard."""
    for key, row in read_shard(path):
        yield decode(key, row)


FORMAT = ShardFormat("cc-region-features", "region_features", "parquet", write_shard, read_shard)
