"""Shards to make from finished sequences; the shards of the earlier job decide their content."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, rejects, scores, sequences
from cc_prep.formats.base import ShardFormat, require_as_written, split_of
from cc_prep.formats.sequences import StoredSequence
from cc_prep.manifest import Manifest
from pipelines.plan import larger_already
from pipelines.shards import Shard
from pipelines.state import sources
from pipelines.state.journal import Done
from pipelines.steps.base import Item


@dataclass(frozen=True)
class ShardFromStored:
    """A shard to make from a finished one of an earlier job: the whole of it, or nothing.

    count: number of items to use, from the first. limited: whether it has more. input_digest:
    SHA-256 over everything that decides the result's bytes. digests: the recorded SHA-256 of the
    files that it is made from, by path. KIND: what messages call the items. TYPE: see `to_json`.
    """

    TYPE: ClassVar[str]
    KIND: ClassVar[str]

    split: str
    name: str
    count: int
    input_digest: str
    limited: bool = field(default=False, kw_only=True)
    digests: dict[str, str] = field(default_factory=dict, kw_only=True)

    def items(self) -> Iterator[Item]:
        """The items one by one. Raises DamagedShard, also for a file of another digest."""
        raise NotImplementedError

    def digest(self) -> str:
        return self.input_digest

    def remaining(self: Stored, done: Done | None, retry_rejects: bool) -> Stored | None:
        """The whole shard if it is missing or its input changed; None if it is finished.

        Nothing of a present file is kept, since any of its items may have failed. Raises UserError
        if it holds more than --limit now allows.
        """
        return whole_or_none(self, done, self.limited, self.KIND, retry_rejects)

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON for a worker; `type` names the class."""
        return {**asdict(self), "type": self.TYPE}

    @classmethod
    def from_json(cls: type[Stored], value: dict[str, Any]) -> Stored:
        return cls(**{of.name: value[of.name] for of in fields(cls)})


Stored = TypeVar("Stored", bound=ShardFromStored)


Whole = TypeVar("Whole", bound=Shard)


def whole_or_none(
    shard: Whole, done: Done | None, limited: bool, kind: str, retry_rejects: bool
) -> Whole | None:
    """The shard if it is missing or its input changed; None if it is finished.

    limited: whether its input has more items. kind: what messages call the items. Raises UserError
    if the finished shard holds more than --limit now allows.
    """
    if done is None:
        return shard
    if limited and done.pairs > shard.count:
        raise larger_already(shard.name, f"{done.pairs} {kind}", shard.count)
    if done.input_digest != shard.digest():
        return shard
    return shard if retry_rejects and done.rejects else None


def digest_of(*parts: object) -> str:
    """SHA-256 over the parts that decide a shard's bytes, in this order."""
    return hashlib.sha256(":".join(map(str, parts)).encode()).hexdigest()


@dataclass(frozen=True)
class ShardFromSequences(ShardFromStored):
    """A shard to make from a finished shard of sequences, and from their scores if there are any.

    sequences, scores: the files.
    """

    TYPE = "sequences"
    KIND = "sequences"

    sequences: str
    scores: str | None = None

    def items(self) -> Iterator[StoredSequence]:
        """The sequences one by one, each with its scores. Raises DamagedShard."""
        require_as_written(self.digests)
        rows = dict(scores.read_shard(self.scores)) if self.scores is not None else {}
        for sequence in itertools.islice(sequences.read(self.sequences), self.count):
            row = rows.get(sequence.key)
            if row is not None:
                decoded = scores.decode({"key": sequence.key, **row})
                sequence = replace(sequence, scores=decoded)
            yield sequence


def plan_from_sequences(
    folder: str, splits: Sequence[str], limit: int | None, score_folder: str | None = None
) -> list[ShardFromSequences]:
    """The shards to make from finished sequences; of each split at most `limit` samples.

    score_folder: the folder of their scores. Raises UserError if there are none, if the job that
    makes them has not ended, or if scores are missing or belong to other sequences.
    """
    records = finished_shards(folder, sequences.FORMAT, "interpolate")
    score_records = (
        finished_shards(score_folder, scores.FORMAT, "score-frames") if score_folder else None
    )
    shards = []
    for split, name, count in in_splits(records, splits, limit):
        record = records[name]
        digest = digest_of(record["sha256"], count)
        path, table = storage.join(folder, sequences.FORMAT.file(name)), None
        digests = {path: record["sha256"]}
        if score_records is not None and score_folder is not None:
            table = storage.join(score_folder, scores.FORMAT.file(name))
            digest = _digest_with_scores(name, record, count, score_records, score_folder)
            digests[table] = score_records[name]["sha256"]
        limited = count < record["samples"]
        shards.append(
            ShardFromSequences(
                split, name, count, digest, path, table, limited=limited, digests=digests
            )
        )
    if not shards:
        rejected = _rejected(records, splits)
        maker = sources.maker(provenance.read(folder) or {})
        if rejected:
            raise UserError(
                f"{folder}: all pairs of {', '.join(rejected)} were rejected, as "
                f"{rejects.FILE} there says",
                f"Fix them and run {maker} --retry-rejects",
            )
        raise UserError(
            f"{folder}: no sequences of {', '.join(splits)}", "Interpolate that split first"
        )
    return shards


def note_what_is_missing(
    shards: Sequence[ShardFromSequences],
    folder: str,
    *,
    manifest: Manifest,
    splits: Sequence[str],
    limit: int | None,
    console: Console,
) -> None:
    """Prints notes on splits and pairs without sequences, of which nothing can be made.

    Further notes name pairs of the data that changed since they were interpolated. limit: as in
    `plan_from_sequences`.
    """
    records = finished_shards(folder, sequences.FORMAT, "interpolate")
    missing = [split for split in splits if split not in {shard.split for shard in shards}]
    rejected = _rejected(records, missing)
    for names, what in (
        ([split for split in missing if split not in rejected], "no sequences of {} in {}"),
        (rejected, "all pairs of {} were rejected in {}"),
    ):
        if names:
            line = what.format(", ".join(names), folder)
            console.print(f"{line}: nothing is made of them")
    sources.note_missing(folder, splits, limit, console)
    sources.note_changed(manifest, folder, splits, console)


def _rejected(records: Mapping[str, Mapping[str, Any]], splits: Sequence[str]) -> list[str]:
    """Splits, out of `splits`, whose shards hold no sample at all."""
    samples = Counter[str]()
    for name, record in records.items():
        samples[split_of(name)] += record["samples"]
    return [split for split in splits if split in samples and not samples[split]]


def in_splits(
    records: Mapping[str, Mapping[str, Any]], splits: Sequence[str], limit: int | None
) -> Iterator[tuple[str, str, int]]:
    """Split and name of the finished shards of some splits, and the number of samples to use.

    records: their provenance by name. limit: largest number of samples of a split; None for all.
    """
    left = dict.fromkeys(splits, math.inf if limit is None else limit)
    for name, record in sorted(records.items()):
        split = split_of(name)
        count = int(min(record["samples"], left.get(split, 0)))
        if count > 0:
            left[split] -= count
            yield split, name, count


def finished_shards(folder: str, kind: ShardFormat, command: str) -> dict[str, dict[str, Any]]:
    """The provenance of each shard in `folder` by name. Raises UserError unless all are there."""
    record = provenance.read(folder)
    if record is None or record.get("format") != kind.name:
        raise UserError(f"{folder}: no {kind.folder} there", f"Run: cc-prep {command}")
    if not record.get("complete"):
        short = _unfinished(record)
        remedy = f"Run: cc-prep {command}"
        if short:
            remedy += ", for all of these pairs (a smaller --limit does not finish it), or give "
            remedy += "another --out"
        raise UserError(f"{folder}: not all planned shards are finished{short}", remedy)
    shards: dict[str, dict[str, Any]] = record["shards"]
    return shards


def _unfinished(record: Mapping[str, Any]) -> str:
    """How many of the planned pairs of a split are finished, where it is not all; may be empty."""
    planned, finished = Counter[str](), Counter[str]()
    for name, pairs in record.get("planned", {}).items():
        planned[split_of(name)] += pairs
    for name, one in record["shards"].items():
        finished[split_of(name)] += one["samples"] + one["rejected"]
    counts = [
        f"{split}: {finished[split]:,} of {pairs:,} pairs"
        for split, pairs in planned.items()
        if finished[split] < pairs
    ]
    return f" ({', '.join(counts)})" if counts else ""


def check_scores(
    name: str, record: Mapping[str, Any], score_records: Mapping[str, Any], folder: str
) -> int:
    """The number of a shard's sequences, from the first, whose scores are in `folder`.

    record, score_records: provenance of the sequences, and of the scores by shard. Raises UserError
    if there are no scores of the shard, or if they are of other sequences.
    """
    remedy = "Run cc-prep score-frames again"
    if name not in score_records:
        raise UserError(f"{folder}: no scores of {name}", remedy)
    scored = score_records[name]
    count = int(scored["samples"] + scored["rejected"])
    if scored.get("input_digest") != digest_of(record["sha256"], count):
        raise UserError(f"{folder}: the scores of {name} are of other sequences", remedy)
    return count


def _digest_with_scores(
    name: str, record: dict[str, Any], count: int, score_records: dict[str, Any], folder: str
) -> str:
    """The digest of sequences and scores. Raises UserError if the scores do not cover them."""
    scored = check_scores(name, record, score_records, folder)
    if scored < count:
        raise UserError(
            f"{folder}: of {count} sequences of {name}, {scored} have scores",
            "Run cc-prep score-frames without --limit, or with a larger one",
        )
    return digest_of(digest_of(record["sha256"], count), score_records[name]["sha256"])
