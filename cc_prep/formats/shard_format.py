"""What every kind of shard has in common: a name, a folder, and how one is written and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from cc_prep.formats.tar import Written


@dataclass(frozen=True)
class ShardFormat:
    """A kind of shard.

    name, version: as they stand in the provenance. folder: below an --out. write: a place → a
    writer with `add(key, sample)`, and what was written once the block ends. read: a place → (key,
    sample) in order, as `add` takes them. indexed: whether `index.parquet` says where samples lie.
    """

    name: str
    version: int
    folder: str
    extension: str
    write: Callable[[str], AbstractContextManager[tuple[Any, Written]]]
    read: Callable[[str], Iterator[tuple[str, Any]]]
    indexed: bool = False

    def file(self, shard: str) -> str:
        """File name of a shard named `<split>-000000`."""
        return f"{shard}.{self.extension}"
