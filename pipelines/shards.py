"""A planned shard: what it is made from, whether that is still to do, and its items for a step.

A plan is what the driver sends to a worker. It names files and their digests, or holds the pairs
themselves, so it passes through JSON.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, SkipValidation, TypeAdapter

from cc_prep.errors import UserError
from cc_prep.formats import changes, entities, region_features, scores, sequences
from cc_prep.formats.changes import StoredChange
from cc_prep.formats.region_features import RegionRow
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard, require_as_written
from cc_prep.records import ImagePair
from cc_prep.steps.base import Item, WithFindings
from pipelines.state.journal import Done

# pydantic refuses names of files that are not UTF-8, which a disk may hold.
Text = Annotated[str, SkipValidation]
Pair = Annotated[
    ImagePair,
    PlainValidator(lambda pair: pair if isinstance(pair, ImagePair) else ImagePair.from_json(pair)),
    PlainSerializer(ImagePair.to_json),
]


@dataclass(frozen=True)
class Pairs:
    """Pairs of the data.

    Attributes:
        index: The shard's number within its split.
        available: Number of pairs of the split in the data, whatever --limit takes of them.
    """

    pairs: tuple[Pair, ...]
    index: int
    available: int
    type: Literal["pairs"] = "pairs"
    unit = "pairs"
    limited = True

    @property
    def count(self) -> int:
        return len(self.pairs)

    def items(self) -> Iterator[ImagePair]:
        return iter(self.pairs)

    def digest(self, count: int | None = None) -> str:
        """SHA-256 over the first `count` pairs, all by default."""
        pairs = self.pairs[:count]
        return hashlib.sha256("".join(p.digest() for p in pairs).encode()).hexdigest()


@dataclass(frozen=True)
class Stored:
    """The first samples of a finished shard of an earlier job.

    Attributes:
        path: Its file.
        count: Number of samples to use.
        input_digest: SHA-256 over everything that decides the result's bytes.
        limited: Whether the file has more samples.
        digests: The recorded SHA-256 of all files that are read, by path.
    """

    path: Text
    count: int
    input_digest: Text
    limited: bool = field(default=False, kw_only=True)
    digests: dict[Text, Text] = field(default_factory=dict, kw_only=True)
    pairs = ()

    def digest(self, count: int | None = None) -> str:
        return self.input_digest


@dataclass(frozen=True)
class Sequences(Stored):
    """Sequences, and the file of their scores if there is one."""

    scores: Text | None = None
    type: Literal["sequences"] = "sequences"
    unit = "sequences"

    def items(self) -> Iterator[StoredSequence]:
        """Each sequence with its scores. Raises DamagedShard, also for a file that changed."""
        require_as_written(self.digests)
        rows = dict(scores.read_shard(self.scores)) if self.scores is not None else {}
        for sequence in itertools.islice(sequences.read(self.path), self.count):
            row = rows.get(sequence.key)
            if row is not None:
                decoded = scores.decode({"key": sequence.key, **row})
                sequence = replace(sequence, scores=decoded)
            yield sequence


@dataclass(frozen=True)
class Regions(Stored):
    """Vectors of regions; the digest also covers the training shards that vote."""

    type: Literal["regions"] = "regions"
    unit = "pairs"

    def items(self) -> Iterator[RegionRow]:
        """The rows one by one. Raises DamagedShard, also for a file that changed."""
        require_as_written(self.digests)
        return itertools.islice(region_features.read(self.path), self.count)


Source = Annotated[Pairs | Sequences | Regions, Field(discriminator="type")]


@dataclass(frozen=True)
class FindingFiles:
    """The files of the changes and entities that were found in a shard's pairs.

    Attributes:
        digest: SHA-256 over what decides the findings.
        rejected: Keys of pairs that one of these jobs rejected, which are in no file therefore.
        digests: The recorded SHA-256 of the files by path.
    """

    digest: Text
    changes: Text
    entities: Text | None = None
    rejected: tuple[Text, ...] = ()
    digests: dict[Text, Text] = field(default_factory=dict)

    def beside(self, items: Iterable[Any]) -> Iterator[WithFindings]:
        """The items, each with what was found in it.

        Raises DamagedShard, also for a file of another digest, and UserError for a pair that these
        jobs never saw: it would be taken for a pair in which nothing was found.
        """
        require_as_written(self.digests)
        # Still encoded: a decoded mask takes a byte for each pixel.
        of_pairs = dict(changes.FORMAT.read(self.changes))
        rows = dict(entities.read_shard(self.entities)) if self.entities is not None else {}
        of_jobs: dict[str, Collection[str]] = {self.changes: of_pairs.keys()}
        if self.entities is not None:
            of_jobs[self.entities] = rows.keys()
        for item in items:
            for path, keys in of_jobs.items():
                if item.key not in keys and item.key not in self.rejected:
                    raise UserError(
                        f"{path}: made of other pairs ({item.key} is not among them)",
                        "Run cc-prep changes, and cc-prep entities if it was run, on the same data "
                        "into another --out",
                    )
            row = rows.get(item.key)
            listed = None if row is None else tuple(entities.decode(row))
            members = of_pairs.get(item.key)
            change = None if members is None else self._decoded(item.key, members)
            yield WithFindings(item, change, listed)

    def _decoded(self, key: str, members: Mapping[str, bytes]) -> StoredChange:
        try:
            return changes.decode(key, members)
        except DamagedShard as error:
            raise DamagedShard(f"{self.changes}: {error}") from None


@dataclass(frozen=True)
class PlannedShard:
    """A shard to make: one unit of work, one Ray Data block.

    Attributes:
        existing_sha256: If given, the samples in the shard's present file are kept and only the
            others made, provided that the file has this SHA-256, which was recorded when it was
            written.
    """

    split: Text
    name: Text
    source: Source
    findings: FindingFiles | None = None
    existing_sha256: str | None = None

    @property
    def count(self) -> int:
        """Number of items planned for it."""
        return self.source.count

    @property
    def pairs(self) -> tuple[ImagePair, ...]:
        """The pairs of the data that it is made from; none if it is made of an earlier output."""
        return self.source.pairs

    def items(self) -> Iterator[Item]:
        """The items one by one. Raises DamagedShard and UserError."""
        items = self.source.items()
        return items if self.findings is None else self.findings.beside(items)

    def digest(self) -> str:
        """SHA-256 over everything that decides the bytes of the finished shard."""
        inner = self.source.digest()
        return inner if self.findings is None else digest_of(inner, self.findings.digest)

    def remaining(self, done: Done | None, retry_rejects: bool) -> PlannedShard | None:
        """The part of the shard that is left to make; None if it is finished.

        A finished shard is left alone, unless its rejects are to be retried, its input changed, or
        the plan now has more items for it (a larger --limit). Of pairs of the data, what its file
        holds is kept then, if the file is as it was written. Of an earlier output nothing is kept,
        since any of its items may have failed.

        Args:
            done: The record of the finished shard.

        Raises:
            UserError: If it holds more than is planned now, or pairs of the data changed.
        """
        if done is None:
            return self
        if self.source.limited and done.pairs > self.count:
            unit = self.source.unit if self.findings is None else "pairs"
            raise UserError(
                f"{self.name} holds {done.pairs} {unit}, this run plans {self.count}",
                "Give the same or a larger --limit, put the pairs back, or give another --out",
            )
        retried = retry_rejects and bool(done.rejects)
        if not self.pairs or self.findings is not None:
            return self if retried or done.input_digest != self.digest() else None
        if done.input_digest != self.source.digest(done.pairs):
            raise UserError(
                f"the pairs of {self.name} changed since it was made (names, captions, labels, "
                "masks or true frames, or a video that could not be opened then), or it was made "
                "from sequences that are gone",
                "Give another --out, or interpolate again if the sequences are gone",
            )
        if done.pairs < self.count or retried:
            return replace(self, existing_sha256=done.sha256)
        return None

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON for a worker."""
        value: dict[str, Any] = _PLANNED_SHARD.dump_python(self)
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PlannedShard:
        return _PLANNED_SHARD.validate_python(value)


_PLANNED_SHARD = TypeAdapter(PlannedShard)


def of_pairs(
    split: str, index: int, pairs: Iterable[ImagePair], available: int = 0
) -> PlannedShard:
    """A shard of pairs of the data; see `Pairs`."""
    return PlannedShard(split, f"{split}-{index:06d}", Pairs(tuple(pairs), index, available))


def digest_of(*parts: object) -> str:
    """SHA-256 over the parts that decide a shard's bytes, in this order."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()


def remaining(
    shards: Iterable[PlannedShard], done: Mapping[str, Done], retry_rejects: bool
) -> list[PlannedShard]:
    """The shards that are not finished. Raises UserError.

    Args:
        done: Those that are.
    """
    left = (shard.remaining(done.get(shard.name), retry_rejects) for shard in shards)
    return [shard for shard in left if shard is not None]
