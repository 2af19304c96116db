"""Shards of entities to make from the vectors of regions, and the training shards that vote."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import region_features
from cc_prep.formats.base import require_as_written, split_of
from cc_prep.formats.region_features import RegionRow
from pipelines.stored import ShardFromStored, digest_of, finished_shards, in_splits

TRAIN = "train"  # the split whose captions and regions may be looked at


@dataclass(frozen=True)
class ShardOfRegions(ShardFromStored):
    """A shard to make from a finished one of region vectors.

    input_digest: SHA-256 over these rows and the training shards. regions: the file.
    """

    TYPE = "regions"
    KIND = "pairs"

    regions: str

    def items(self) -> Iterator[RegionRow]:
        """The rows one by one. Raises DamagedShard."""
        require_as_written(self.digests)
        return itertools.islice(region_features.read(self.regions), self.count)


def plan_from_regions(
    folder: str, splits: Sequence[str], limit: int | None
) -> tuple[list[ShardOfRegions], dict[str, str]]:
    """The shards to make, and the SHA-256 of all training shards by path. Raises UserError."""
    records = finished_shards(folder, region_features.FORMAT, "entities")
    paths = {
        name: storage.join(folder, region_features.FORMAT.file(name)) for name in sorted(records)
    }
    training = [name for name in paths if split_of(name) == TRAIN]
    digest = hashlib.sha256("".join(records[name]["sha256"] for name in training).encode())
    shards = []
    for split, name, count in in_splits(records, splits, limit):
        record = records[name]
        shard_digest = digest_of(record["sha256"], count, digest.hexdigest())
        limited = count < record["samples"]
        digests = {paths[name]: record["sha256"]}
        shards.append(
            ShardOfRegions(
                split, name, count, shard_digest, paths[name], limited=limited, digests=digests
            )
        )
    if not shards:
        raise UserError(f"{folder}: no regions of {', '.join(splits)}", "Name other splits")
    return shards, {paths[name]: records[name]["sha256"] for name in training}
