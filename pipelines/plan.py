"""Which pair goes to which shard, in which order: a pure function of manifest and data.

The plan knows nothing of workers, of what is already there, or of Ray. So a run that is killed and
resumed, or made by another number of workers, gives the same shards.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from cc_prep import datasets, storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, scores, sequences
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.shard_format import ShardFormat
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines.state.journal import Done


@dataclass(frozen=True)
class ShardPlan:
    """One shard: one unit of work, one Ray Data block.

    reuse: take over the samples that the shard's present file holds, and make the others only.
    """

    split: str
    index: int
    pairs: tuple[ImagePair, ...]
    reuse: bool = False

    @property
    def name(self) -> str:
        return f"{self.split}-{self.index:06d}"

    @property
    def count(self) -> int:
        return len(self.pairs)

    def items(self) -> Iterator[ImagePair]:
        return iter(self.pairs)

    def digest(self, count: int | None = None) -> str:
        """SHA-256 over the first `count` pairs, all by default."""
        pairs = self.pairs[:count]
        return hashlib.sha256("".join(p.digest() for p in pairs).encode()).hexdigest()

    def retried(self) -> ShardPlan:
        """The same shard, taking over what its present file holds."""
        return replace(self, reuse=True)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "pairs": [pair.to_json() for pair in self.pairs]}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardPlan:
        pairs = tuple(ImagePair.from_json(pair) for pair in value["pairs"])
        return cls(**{**value, "pairs": pairs})


@dataclass(frozen=True)
class StoredShard:
    """A shard made from a finished shard of sequences, and of their scores where it has some.

    count: so many of its samples, from the first. made_from: what decides the result's bytes.
    """

    split: str
    name: str
    count: int
    made_from: str
    sequences: str
    scores: str | None = None
    reuse: bool = False

    def items(self) -> Iterator[StoredSequence]:
        """The sequences one by one, each with its scores. Raises DamagedShard."""
        found = dict(scores.read_shard(self.scores)) if self.scores is not None else {}
        for stored in itertools.islice(sequences.read(self.sequences), self.count):
            row = found.get(stored.key)
            yield stored if row is None else replace(stored, scores=scores.decode(row))

    def digest(self, count: int | None = None) -> str:
        return self.made_from

    def retried(self) -> StoredShard:
        """The same shard, made anew: what failed in it may be any of its sequences."""
        return self

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StoredShard:
        return cls(**value)


AnyShard = ShardPlan | StoredShard


def shard_from_json(value: dict[str, Any]) -> AnyShard:
    """A planned shard back from its JSON."""
    return ShardPlan.from_json(value) if "pairs" in value else StoredShard.from_json(value)


def plan(manifest: Manifest, splits: Sequence[str], limit: int | None = None) -> list[ShardPlan]:
    """The shards of some splits; of each split at most `limit` pairs. Raises UserError."""
    shards = []
    for split in splits:
        pairs = ordered(datasets.pairs(manifest, split), manifest.shards.shuffle_seed)
        _check_keys(pairs)
        size = manifest.shards.pairs_per_shard
        shards += [
            ShardPlan(split, start // size, tuple(pairs[:limit][start : start + size]))
            for start in range(0, len(pairs[:limit]), size)
        ]
    if not shards:
        raise UserError(
            f"{manifest.root}: no pairs in {', '.join(splits)}",
            f"Look at it with: cc-prep inspect {manifest.name}",
        )
    return shards


def ordered(pairs: Sequence[ImagePair], seed: int | None) -> list[ImagePair]:
    """Pairs shuffled by a digest of seed and id; those of one id stay together.

    The published order has all colour changes first, so shards cut from it would each hold one
    change type. A digest keeps its order in any version of any library. None keeps the data's.
    """
    if seed is None:
        return list(pairs)
    rank = {
        id: hashlib.sha256(f"{seed}:{id}".encode("utf-8", "surrogatepass")).digest()
        for id in {pair.id for pair in pairs}
    }
    return sorted(pairs, key=lambda pair: (rank[pair.id], pair.id))


def stored(
    folder: str, splits: Sequence[str], limit: int | None, score_folder: str | None = None
) -> list[StoredShard]:
    """The shards to make from finished sequences; of each split at most `limit` samples.

    score_folder: the folder of their scores. Raises UserError if there are none, if the job that
    makes them has not ended, or if scores are missing or belong to other sequences.
    """
    made = finished(folder, sequences.FORMAT, "interpolate")
    scored = finished(score_folder, scores.FORMAT, "score-frames") if score_folder else None
    found, taken = [], dict.fromkeys(splits, 0)
    for name, facts in sorted(made.items()):
        split = name.rpartition("-")[0]
        count = facts["samples"]
        if split not in taken:
            continue
        if limit is not None:
            count = min(count, limit - taken[split])
        if not count:
            continue
        taken[split] += count
        digest = hashlib.sha256(f"{facts['sha256']}:{count}".encode()).hexdigest()
        table = None
        if scored is not None and score_folder is not None:
            table = storage.join(score_folder, scores.FORMAT.file(name))
            digest = _check_scored(name, facts, count, scored, score_folder)
        place = storage.join(folder, sequences.FORMAT.file(name))
        found.append(StoredShard(split, name, count, digest, place, table))
    if not found:
        raise UserError(
            f"{folder}: no sequences of {', '.join(splits)}", "Interpolate that split first"
        )
    return found


def finished(folder: str, kind: ShardFormat, command: str) -> dict[str, dict[str, Any]]:
    """What a job says of each shard in its provenance. Raises UserError if it is not finished."""
    record = provenance.read(folder)
    if record is None or record.get("format") != kind.name:
        raise UserError(f"{folder}: no {kind.folder} there", f"Run: cc-prep {command}")
    if not record.get("complete"):
        raise UserError(f"{folder}: not all planned shards are there", f"Run: cc-prep {command}")
    made: dict[str, dict[str, Any]] = record["shards"]
    return made


def _check_scored(
    name: str, facts: dict[str, Any], count: int, scored: dict[str, Any], folder: str
) -> str:
    """The digest of the scores of a shard, which were made from these sequences."""
    remedy = "Run cc-prep score-frames again"
    whole = hashlib.sha256(f"{facts['sha256']}:{facts['samples']}".encode()).hexdigest()
    part = hashlib.sha256(f"{facts['sha256']}:{count}".encode()).hexdigest()
    if name not in scored:
        raise UserError(f"{folder}: no scores of {name}", remedy)
    if scored[name].get("made_from") not in (whole, part):
        raise UserError(f"{folder}: the scores of {name} are of other sequences", remedy)
    return hashlib.sha256(f"{part}:{scored[name]['sha256']}".encode()).hexdigest()


def remaining(
    shards: Sequence[AnyShard], done: dict[str, Done], retry_rejects: bool
) -> list[AnyShard]:
    """The shards that still want work, given those that are finished.

    A finished shard is left alone, unless its rejects are to be retried or the plan now has more
    pairs for it (a larger --limit); one made from stored sequences is made anew when they changed.
    Raises UserError if it was made from other pairs.
    """
    todo: list[AnyShard] = []
    for shard in shards:
        before = done.get(shard.name)
        if before is None:
            todo.append(shard)
        elif isinstance(shard, StoredShard):
            if before.pairs_digest != shard.digest() or (retry_rejects and before.rejects):
                todo.append(shard.retried())
        elif before.pairs > len(shard.pairs):
            raise UserError(
                f"{shard.name} holds {before.pairs} pairs, this run plans {len(shard.pairs)}",
                "Give the same or a larger --limit, or another --out",
            )
        elif before.pairs_digest != shard.digest(before.pairs):
            raise UserError(
                f"the pairs of {shard.name} changed since it was made (images or captions)",
                "Give another --out for the changed data",
            )
        elif before.pairs < len(shard.pairs) or (retry_rejects and before.rejects):
            todo.append(shard.retried())
    return todo


def _check_keys(pairs: Sequence[ImagePair]) -> None:
    keys = sorted(pair.key for pair in pairs)
    for one, other in itertools.pairwise(keys):
        if one == other:
            raise UserError(f"two pairs have the key {one}", "Give each pair an id of its own")
