"""The interface of a step: shards of items in, a sample or a rejection of each item out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

from cc_prep.errors import RejectedPair
from pipelines.state.journal import Done

# A sample of a tar: its members by extension.
Members = dict[str, bytes]
# What a sample is depends on the format: members of a tar, or a row of a table.
Sample = Any


class Item(Protocol):
    """The input of a sample: a pair, a stored sequence, or the result of an earlier job."""

    @property
    def key(self) -> str: ...
    @property
    def split(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...


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


class Step(Protocol):
    """The work on some items, with the weights it needs held inside."""

    pairs_per_batch: int

    def __call__(self, items: Any, /) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        ...

    def free_memory(self) -> None:
        """Called after an out-of-memory error, before a smaller batch is tried."""
        ...

    def check_device(self) -> None:
        """Computes a little on the device, after a process before this one failed there.

        Raises the error of a broken device.
        """
        ...


@runtime_checkable
class Staged(Protocol):
    """A step of three stages; a call runs them one after the other.

    On a GPU, each stage has a thread of its own; only `compute` uses the device. All are called
    with the same items.
    """

    def read(self, items: Any, /) -> Any:
        """The network's input for the items. Safe to call from two threads at a time."""
        ...

    def compute(self, items: Any, inputs: Any, /) -> Any:
        """The network's output. Never called twice at a time."""
        ...

    def encode(self, items: Any, computed: Any, /) -> list[Any]:
        """Each item's sample, or why it was rejected, in the order given."""
        ...


@runtime_checkable
class Expecting(Protocol):
    """A step that reads faster if it knows the items in advance."""

    def upcoming(self, items: Any, /) -> None:
        """Announces the items of a shard in their order; some of them may be left out later."""
        ...


# Builds the step inside a worker, on the device given: `cpu` or `cuda`.
MakeStep = Callable[[str], Step]


Result = TypeVar("Result")


def unless_rejected(
    function: Callable[..., Result], outcomes: Iterable[Any], *others: Iterable[Any]
) -> list[Result | RejectedPair]:
    """Applies `function` to each outcome and the values beside it; rejections pass through.

    others: further arguments of `function`; each has to be as long as `outcomes`.
    """
    return [
        outcome if isinstance(outcome, RejectedPair) else function(outcome, *beside)
        for outcome, *beside in zip(outcomes, *others, strict=True)
    ]


def remaining(shards: Iterable[Shard], done: dict[str, Done], retry_rejects: bool) -> list[Shard]:
    """The shards that are not finished. done: those that are. Raises UserError."""
    left = (shard.remaining(done.get(shard.name), retry_rejects) for shard in shards)
    return [shard for shard in left if shard is not None]
