"""Shards of entities to make from the vectors of regions, and the training shards that decide."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import region_features
from cc_prep.formats.region_features import RegionRow
from pipelines.plan import larger_already
from pipelines.state.journal import Done
from pipelines.stored import finished_shards

TRAIN = "train"  # the split whose captions and regions may be looked at


@dataclass(frozen=True)
class ShardOfRegions:
    """A shard to make from a finished one of region vectors.

    count: so many of its rows, from the first. limited: whether it has more. input_digest: SHA-256
    over these rows and the training shards.
    """

    split: str
    name: str
    count: int
    input_digest: str
    regions: str
    limited: bool = False

    def items(self) -> Iterator[RegionRow]:
        """The rows one by one. Raises DamagedShard."""
        return itertools.islice(region_features.read(self.regions), self.count)

    def digest(self) -> str:
        return self.input_digest

    def remaining(self, done: Done | None, retry_rejects: bool) -> ShardOfRegions | None:
        """The whole shard where it is to be made or its input changed; None if it is finished.

        Raises UserError where it holds more than a --limit now asks for.
        """
        if done is not None and self.limited and done.pairs > self.count:
            raise larger_already(self.name, f"{done.pairs} pairs", self.count)
        if done is None or done.input_digest != self.input_digest:
            return self
        return self if retry_rejects and done.rejects else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardOfRegions:
        return cls(**value)


def plan_from_regions(
    folder: str, splits: Sequence[str], limit: int | None
) -> tuple[list[ShardOfRegions], list[str]]:
    """The shards to make, and the places of all training shards. Raises UserError."""
    records = finished_shards(folder, region_features.FORMAT, "entities")
    places = {
        name: storage.join(folder, region_features.FORMAT.file(name)) for name in sorted(records)
    }
    training = [name for name in places if name.rpartition("-")[0] == TRAIN]
    digest = hashlib.sha256("".join(records[name]["sha256"] for name in training).encode())
    shards, planned = [], dict.fromkeys(splits, 0)
    for name, place in places.items():
        split, whole = name.rpartition("-")[0], records[name]["samples"]
        if split not in planned:
            continue
        count = whole if limit is None else min(whole, limit - planned[split])
        if count <= 0:
            continue
        planned[split] += count
        parts = f"{records[name]['sha256']}:{count}:{digest.hexdigest()}"
        shards.append(
            ShardOfRegions(
                split,
                name,
                count,
                hashlib.sha256(parts.encode()).hexdigest(),
                place,
                count < whole,
            )
        )
    if not shards:
        raise UserError(f"{folder}: no regions of {', '.join(splits)}", "Name other splits")
    return shards, [places[name] for name in training]
