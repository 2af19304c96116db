"""Training shards → micro-batches.

The endless order of samples is a pure function of the seed, fixed before it is divided among ranks
and loader workers. So all ranks get the same number of batches, and the numbers of workers and
shards are free. A killed run needs only its number of steps to resume; the state holds more, so
that it can be compared with the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from pydantic import Field, model_validator

from cc_prep.errors import JobFailed, UserError
from cc_prep.formats.tar import DamagedShard
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.settings import Conflict, Section
from cc_train.data import order
from cc_train.data.shard_index import Entry
from cc_train.distributed import Ranks

Drawn = tuple[TrainingSample, np.random.Generator]
SKIPPED = "skipped"  # where a batch names the samples that could not be read
REMEDY = "check the shards with `cc-prep verify`, or rebuild them"


class StreamSettings(Section):
    """How shards are read."""

    buffer: int = Field(4096, ge=1)
    """Samples that are shuffled together."""
    item: Literal["pair", "sentence"] = "pair"
    """What an epoch has once: each pair, with a caption that is drawn; or each sentence, which is a
    pair with one of its captions, for which `stream.pair_scenes` must be off."""
    pair_scenes: bool = False
    """The changed and the unchanged pair of a scene form one item, so a batch of 16 has 32 pairs if
    all scenes have both."""
    skip_bad: float = Field(0.01, ge=0, le=1)
    """The share of all samples that may be unreadable before training ends with an error, and of
    those to validate on."""
    verify_checksums: bool = True
    """Compare the bytes of each training sample with its checksum in `index.parquet`; one that
    differs counts as unreadable."""

    @model_validator(mode="after")
    def _a_sentence_is_of_one_pair(self) -> StreamSettings:
        if self.item == "sentence" and self.pair_scenes:
            raise Conflict("stream.item: a sentence is of one pair, not of a scene",
                           "Set stream.pair_scenes=false, or stream.item=pair")  # fmt: skip
        return self


class Part(NamedTuple):
    """A sample of an item.

    Attributes:
        entry: Its number.
        caption: The number of the only one of its captions that is seen; None for all.
    """

    entry: int
    caption: int | None = None


class Source(Protocol):
    """A source of micro-batches.

    Attributes:
        keys: The keys of all samples that they are made of.
    """

    @property
    def keys(self) -> Sequence[str]: ...

    def __call__(self, number: int) -> Any:
        """The micro-batch of this rank by its number."""
        ...

    def mark_skipped(self, keys: Sequence[str]) -> None:
        """Records samples that some rank could not read; called in every main process."""
        ...

    def state(self, number: int) -> dict[str, Any]:
        """The state of the stream before micro-batch `number`, as JSON."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Takes a state back.

        Raises:
            UserError: If it belongs to other data.
        """
        ...


class StatelessSource:
    """A source without a state of its own: a function of the number.

    Args:
        keys: See `Source`.
    """

    def __init__(self, batch: Callable[[int], Any], keys: Sequence[str] = ()) -> None:
        self.batch, self.keys = batch, keys

    def __call__(self, number: int) -> Any:
        return self.batch(number)

    def mark_skipped(self, keys: Sequence[str]) -> None:
        """Nothing to note."""

    def state(self, number: int) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class Stream:
    """The micro-batches of one rank, by their number: a `Source` over training shards.

    Args:
        make: Builds a batch, a dict of tensors, from samples and a random generator for each. A
            damaged sample is replaced by the one that follows it in the order, and the batch lists
            its key under `SKIPPED`.
        partners: `make` takes two more arguments, `others` (further samples and their generators)
            and `negative_index` (int64 [B], for each sample the number of its partner; numbers from
            B on are those of `others`). The partner is the neighbour in the endless order (in an
            item of two samples, the other one), so it does not depend on how a step is divided.

    Raises:
        UserError: If there are fewer items than a step of all ranks needs.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        make: Callable[..., dict[str, Any]],
        *,
        batch_size: int,
        seed: int,
        settings: StreamSettings,
        ranks: Ranks,
        partners: bool = False,
    ) -> None:
        self.entries, self.make, self.partners = list(entries), make, partners
        if not settings.verify_checksums:
            self.entries = [replace(entry, crc32c=None) for entry in entries]
        self.batch_size, self.seed, self.settings, self.ranks = batch_size, seed, settings, ranks
        self.items, self.counts = items(self.entries, settings)
        if len(self.items) < batch_size * ranks.world:
            fitting = len(self.items) // ranks.world
            raise UserError(
                f"{len(self.items)} items in {len(self.counts)} shards are fewer than a step needs "
                f"({ranks.world} × {batch_size})",
                "Give more shards, fewer processes or a smaller batch"
                + (f", such as --set loop.batch_size={fitting}" if fitting else ""),
            )
        self.keys = [entry.key for entry in self.entries]
        self.digest = hashlib.sha256("\n".join(self.keys).encode()).hexdigest()
        self.skipped: set[str] = set()

    def __call__(self, number: int) -> dict[str, Any]:
        bad: list[str] = []
        positions = order.positions_of(number, self.batch_size, self.ranks.rank, self.ranks.world)
        items = {position: self._drawn(position, bad) for position in positions}
        samples, rngs = _apart(drawn for item in items.values() for drawn in item)
        more: list[Any] = []
        if self.partners:
            others, partner = self._partners(items, bad)
            more = [_apart(others), np.array(partner)]
        try:
            batch = self.make(samples, rngs, *more)
        except DamagedShard as error:  # of what only the batch decodes: images and masks
            raise JobFailed(f"{error}: {REMEDY}") from None
        return {**batch, SKIPPED: bad}

    def _partners(
        self, items: Mapping[int, list[Drawn]], bad: list[str]
    ) -> tuple[list[Drawn], list[int]]:
        """The partners that are not in the batch, and the number of each sample's partner."""
        count, firsts = 0, dict[int, int]()
        for position, item in items.items():
            firsts[position] = count
            count += len(item)
        others: list[Drawn] = []
        partner: list[int] = []
        for position, item in items.items():
            for place in range(len(item)):
                if len(item) > 1:
                    beside = place ^ 1
                    partner.append(firsts[position] + (beside if beside < len(item) else 0))
                    continue
                neighbour = position ^ 1
                if neighbour not in firsts:
                    firsts[neighbour] = count + len(others)
                    others += self._drawn(neighbour, bad)[:1]
                partner.append(firsts[neighbour])
        return others, partner

    def _drawn(self, position: int, bad: list[str]) -> list[Drawn]:
        """The samples at a position of the endless order, each with its random generator."""
        epoch, place = divmod(position, len(self.items))
        rows = order.epoch_order(self.counts, epoch, self.seed, self.settings.buffer)
        item = self._item(rows, place, bad)
        rng = order.rng_at(self.seed, position)
        rngs = [rng] if len(item) == 1 else list(rng.spawn(len(item)))
        return list(zip(item, rngs, strict=True))

    def mark_skipped(self, keys: Sequence[str]) -> None:
        """Counts samples that could not be read.

        Raises:
            JobFailed: If there are too many.
        """
        new = set(keys) - self.skipped
        self.skipped |= new
        allowed = self.settings.skip_bad * len(self.entries)
        if new and len(self.skipped) > allowed:
            last = max(new)
            shard = next(entry.shard for entry in self.entries if entry.key == last)
            raise JobFailed(
                f"{len(self.skipped)} of {len(self.entries)} samples cannot be read, the last is "
                f"{last} of {shard}: {REMEDY}, or raise stream.skip_bad"
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
        """Raises UserError for other data. A step may be divided in another way than before."""
        if state.get("keys_sha256") != self.digest:
            raise UserError("the run was trained on other samples", "Give the same shards")
        self.skipped = set(state["skipped"])

    def _item(self, rows: np.ndarray, place: int, bad: list[str]) -> list[TrainingSample]:
        """The samples at a position of an epoch's order; a damaged one is replaced by the next."""
        for step in range(len(rows)):
            samples = []
            for part in self.items[rows[(place + step) % len(rows)]]:
                entry = self.entries[part.entry]
                try:
                    samples.append(_with_caption(entry.read(), part.caption))
                except (DamagedShard, FileNotFoundError):
                    bad.append(entry.key)
            if samples:
                return samples
        raise JobFailed("not one sample of these shards can be read")


def _apart(drawn: Iterable[Drawn]) -> tuple[list[TrainingSample], list[np.random.Generator]]:
    listed = list(drawn)
    return [sample for sample, _ in listed], [rng for _, rng in listed]


def _with_caption(sample: TrainingSample, caption: int | None) -> TrainingSample:
    """The sample with the caption of this number alone; with all of them for None."""
    if caption is None:
        return sample
    return replace(sample, meta={**sample.meta, "captions": [sample.meta["captions"][caption]]})


def items(
    entries: Sequence[Entry], settings: StreamSettings
) -> tuple[list[tuple[Part, ...]], tuple[int, ...]]:
    """The parts of every item, and how many items each shard has.

    A scene belongs to the shard of its first entry. A pair without captions is one sentence.
    """
    groups: dict[tuple[str, int | None], list[Part]] = {}
    for number, entry in enumerate(entries):
        name = entry.scene if settings.pair_scenes else entry.key
        count = len(entry.captions) if settings.item == "sentence" else 0
        for caption in range(count) if count else [None]:
            groups.setdefault((name, caption), []).append(Part(number, caption))
    counts: dict[str, int] = {}
    for group in groups.values():
        shard = entries[group[0].entry].shard
        counts[shard] = counts.get(shard, 0) + 1
    return [tuple(group) for group in groups.values()], tuple(counts.values())
