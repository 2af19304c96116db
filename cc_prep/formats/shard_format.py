"""What every kind of shard has in common: a name, a folder, and how one is written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cc_prep.formats.tar import Written

# Of each format by its name in the provenance; a folder of another version is refused.
VERSIONS = {"cc-sequences": 2, "cc-scores": 2, "cc-training-shards": 2}


@dataclass(frozen=True)
class ShardFormat:
    """A kind of shard.

    name: as it stands in the provenance. folder: below an --out. write: a place → a
    writer with `add(key, sample)`, and what was written once the block ends. read: a place → (key,
    sample) in order, as `add` takes them. indexed: whether `index.parquet` says where samples lie.
    """

    name: str
    folder: str
    extension: str
    write: Callable[[str], AbstractContextManager[tuple[Any, Written]]]
    read: Callable[[str], Iterator[tuple[str, Any]]]
    indexed: bool = False

    @property
    def version(self) -> int:
        """As it stands in the provenance."""
        return VERSIONS[self.name]

    def file(self, shard: str) -> str:
        """File name of a shard named `<split>-000000`."""
        return f"{shard}.{self.extension}"
