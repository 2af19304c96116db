"""The interface of a planned shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from pipelines.state.journal import Done
from pipelines.steps.base import Item


class Shard(Protocol):
    """A planned shard; its classes are listed in `pipelines.worker.shard_types`.

    count: number of items planned for it.
    """

    @property
    def name(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def count(self) -> int: ...

    def items(self) -> Iterator[Item]:
        """The items one by one. Raises DamagedShard and UserError."""
        ...

    def digest(self) -> str:
        """SHA-256 over everything that decides the bytes of the finished shard."""
        ...

    def remaining(self, done: Done | None, retry_rejects: bool) -> Shard | None:
        """The part of the shard that is left to make; None if it is finished. Raises UserError."""
        ...

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON for a worker; `type` names the class."""
        ...


def remaining(shards: Iterable[Shard], done: dict[str, Done], retry_rejects: bool) -> list[Shard]:
    """The shards that are not finished. done: those that are. Raises UserError."""
    left = (shard.remaining(done.get(shard.name), retry_rejects) for shard in shards)
    return [shard for shard in left if shard is not None]
