"""Training shards → micro-batches.

Which sample stands at which place of the endless order is a pure function of the seed, decided
before the order is divided among ranks and loader workers. So every rank gets as many batches as
every other, and the number of workers and shards is free. A run that was killed needs nothing but
its number of steps to go on; the state holds more, so that it can be compared with the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from pydantic import Field

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.settings import Section
from cc_train.data import order
from cc_train.data.shard_index import Entry
from cc_train.distributed import Ranks

SKIPPED = "skipped"  # where a batch names the samples that could not be read


class StreamSettings(Section):
    """How shards are read.

    buffer: samples that are shuffled together. pair_scenes: the change and the no-change pair of a
        scene come as one item, so a batch of 16 has 32 pairs where there are both.
    skip_bad: the share of all samples that may be unreadable before training ends with an error.
    """

    buffer: int = Field(4096, ge=1)
    pair_scenes: bool = False
    skip_bad: float = Field(0.01, ge=0, le=1)


class Source(Protocol):
    """Where micro-batches come from."""

    def __call__(self, number: int) -> Any:
        """The micro-batch of this rank by its number."""
        ...

    def mark_consumed(self, batch: Any) -> None:
        """Called in the main process for every micro-batch that was trained on."""
        ...

    def state(self, number: int) -> dict[str, Any]:
        """Where the stream stands before micro-batch `number`, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Takes a state back. Raises UserError if it belongs to other data."""
        ...


class StatelessSource:
    """A source without a state of its own: a function of the number."""

    def __init__(self, batch: Callable[[int], Any]) -> None:
        self.batch = batch

    def __call__(self, number: int) -> Any:
        return self.batch(number)

    def mark_consumed(self, batch: Any) -> None:
        """Nothing to note."""

    def state(self, number: int) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class Stream:
    """The micro-batches of one rank, by their number: a `Source` over training shards.

    make: builds a batch, a dict of tensors, from samples and a random generator for each. A
    damaged sample is replaced by the one that follows it in the order, and the batch lists its key
    under `SKIPPED`. Raises UserError if there are fewer items than a step of all ranks needs.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        make: Callable[[list[TrainingSample], list[np.random.Generator]], dict[str, Any]],
        batch_size: int,
        seed: int,
        settings: StreamSettings,
        ranks: Ranks,
    ) -> None:
        self.entries, self.make = list(entries), make
        self.batch_size, self.seed, self.settings, self.ranks = batch_size, seed, settings, ranks
        self.items, self.counts = items(self.entries, settings.pair_scenes)
        if len(self.items) < batch_size * ranks.world:
            raise UserError(
                f"{len(self.items)} items in {len(self.counts)} shards are fewer than a step needs "
                f"({ranks.world} × {batch_size})",
                "Give more shards, a smaller loop.batch_size or fewer processes",
            )
        keys = "\n".join(entry.key for entry in self.entries)
        self.digest = hashlib.sha256(keys.encode()).hexdigest()
        self.skipped: set[str] = set()

    def __call__(self, number: int) -> dict[str, Any]:
        samples: list[TrainingSample] = []
        rngs: list[np.random.Generator] = []
        bad: list[str] = []
        for position in order.positions_of(
            number, self.batch_size, self.ranks.rank, self.ranks.world
        ):
            epoch, place = divmod(position, len(self.items))
            rows = order.epoch_order(self.counts, epoch, self.seed, self.settings.buffer)
            item = self._item(rows, place, bad)
            rng = order.rng_at(self.seed, position)
            samples += item
            rngs += [rng] if len(item) == 1 else list(rng.spawn(len(item)))
        return {**self.make(samples, rngs), SKIPPED: bad}

    def mark_consumed(self, batch: Any) -> None:
        """Counts what could not be read. Raises JobFailed when that is too much."""
        new = set(batch[SKIPPED]) - self.skipped
        self.skipped |= new
        allowed = self.settings.skip_bad * len(self.entries)
        if new and len(self.skipped) > allowed:
            raise JobFailed(
                f"{len(self.skipped)} of {len(self.entries)} samples cannot be read, the last is "
                f"{sorted(new)[-1]}: look at the shards with `cc-prep verify`, make them anew, or "
                "raise stream.skip_bad"
            )

    def state(self, number: int) -> dict[str, Any]:
        """The epoch, the items seen of it, the samples skipped so far, and a digest of all keys."""
        consumed = number * self.batch_size * self.ranks.world
        epoch, place = divmod(consumed, len(self.items))
        return {
            "epoch": epoch,
            "items": place,
            "batch": self.batch_size * self.ranks.world,
            "skipped": sorted(self.skipped),
            "keys_sha256": self.digest,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Raises UserError for other data, or another batch over all ranks."""
        stored = {name: state.get(name) for name in ("keys_sha256", "batch")}
        own = self.state(0)
        if any(stored[name] != own[name] for name in stored):
            what = "other samples" if stored["keys_sha256"] != self.digest else "another batch"
            raise UserError(
                f"the run was trained on {what}", "Give the same shards, processes and batch size"
            )
        self.skipped = set(state["skipped"])

    def _item(self, rows: np.ndarray, place: int, bad: list[str]) -> list[TrainingSample]:
        """The samples at a place of an epoch's order; for a damaged one what follows it."""
        for step in range(len(rows)):
            samples = []
            for number in self.items[rows[(place + step) % len(rows)]]:
                try:
                    samples.append(self.entries[number].read())
                except (DamagedShard, FileNotFoundError):
                    bad.append(self.entries[number].key)
            if samples:
                return samples
        raise JobFailed("not one sample of these shards can be read")


def items(
    entries: Sequence[Entry], pair_scenes: bool
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """The entries of every item, by number, and how many items each shard has.

    pair_scenes: entries of the same scene are one item, which belongs to the shard of the first.
    """
    groups: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        groups.setdefault(entry.scene if pair_scenes else entry.key, []).append(number)
    counts: dict[str, int] = {}
    for group in groups.values():
        shard = entries[group[0]].shard
        counts[shard] = counts.get(shard, 0) + 1
    return [tuple(group) for group in groups.values()], tuple(counts.values())
