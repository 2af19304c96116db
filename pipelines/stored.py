"""Shards to make from the output of earlier jobs, whose shards decide their content.

They are made from sequences, or from vectors of regions. Changes and entities that were found in
the pairs of a shard are in the folders of earlier jobs too, in shards of the same names.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import (
    changes,
    entities,
    provenance,
    region_features,
    rejects,
    scores,
    sequences,
)
from cc_prep.formats.tar import ShardFormat, split_of
from cc_prep.manifest import Manifest
from cc_prep.steps.entities.step import TRAIN
from pipelines import fingerprint
from pipelines.shards import FindingFiles, PlannedShard, Regions, Sequences, digest_of
from pipelines.state import sources

FINDINGS = (changes.FORMAT, entities.FORMAT)


def plan_from_sequences(
    folder: str, splits: Sequence[str], limit: int | None, score_folder: str | None = None
) -> list[PlannedShard]:
    """The shards to make from finished sequences; of each split at most `limit` samples.

    Args:
        score_folder: The folder of their scores.

    Raises:
        UserError: If there are none, if the job that makes them has not ended, or if scores are
            missing or belong to other sequences.
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
            PlannedShard(
                split,
                name,
                Sequences(path, count, digest, table, limited=limited, digests=digests),
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
    shards: Sequence[PlannedShard],
    folder: str,
    *,
    manifest: Manifest,
    splits: Sequence[str],
    limit: int | None,
    console: Console,
) -> None:
    """Prints notes on splits and pairs without sequences, of which nothing can be made.

    Further notes name pairs of the data that changed since they were interpolated.

    Args:
        limit: As in `plan_from_sequences`.
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

    Args:
        records: Their provenance by name.
        limit: Largest number of samples of a split; None for all.
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

    Args:
        record, score_records: Provenance of the sequences, and of the scores by shard.

    Raises:
        UserError: If there are no scores of the shard, or if they are of other sequences.
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


def plan_from_regions(
    folder: str, splits: Sequence[str], limit: int | None
) -> tuple[list[PlannedShard], dict[str, str]]:
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
            PlannedShard(
                split,
                name,
                Regions(paths[name], count, shard_digest, limited=limited, digests=digests),
            )
        )
    if not shards:
        raise UserError(f"{folder}: no regions of {', '.join(splits)}", "Name other splits")
    return shards, {paths[name]: records[name]["sha256"] for name in training}


@dataclass(frozen=True)
class Findings:
    """The found changes and entities in an OUT.

    Attributes:
        settings: The sections of settings that made them.
        weights: SHA-256 by name.
    """

    settings: dict[str, Any]
    weights: dict[str, str]
    changes: dict[str, Any] | None = None
    entities: dict[str, Any] | None = None


def read_findings(
    manifest: Manifest, source: str, kinds: Sequence[ShardFormat] = FINDINGS
) -> Findings:
    """The output of these jobs in `source`. Raises UserError if a job is unfinished or was run
    on other data.
    """
    records: dict[str, Any] = {}
    for kind in kinds:
        folder = storage.join(source, kind.folder)
        if provenance.read(folder) is None:
            continue
        fingerprint.continue_from(manifest, folder, fingerprint.PLAN_KEYS)
        finished_shards(folder, kind, kind.folder)
        records[kind.folder] = provenance.read(folder)
    if "changes" not in records:
        if records:
            raise UserError(f"{source}: entities without found changes", "Run: cc-prep changes")
        return Findings({}, {})
    settings = {name: record["settings"][name] for name, record in records.items()}
    weights: dict[str, str] = {}
    for record in records.values():
        weights |= record["weights"]
    return Findings(settings, weights, **records)


def with_findings(
    shards: Sequence[PlannedShard], source: str, findings: Findings
) -> Sequence[PlannedShard]:
    """The shards with their findings, or the shards as they are if there are no findings.

    Raises UserError if only a part of them was searched.
    """
    if findings.changes is None:
        return shards
    rejected: dict[str, set[str]] = {}
    for kind in (changes.FORMAT, region_features.FORMAT, entities.FORMAT):
        for one in rejects.read(storage.join(source, kind.folder)):
            rejected.setdefault(one.shard, set()).add(one.key)
    enriched = []
    for shard in shards:
        records = {changes.FORMAT: findings.changes, entities.FORMAT: findings.entities}
        paths, digest, digests = {}, "", dict[str, str]()
        for kind, record in records.items():
            if record is None:
                continue
            folder = storage.join(source, kind.folder)
            # Entities are made of the rows of regions, which rejected pairs do not have.
            without = len(rejected.get(shard.name, ())) if kind is entities.FORMAT else 0
            _check_covered(folder, kind.folder, shard, record, without)
            if shard.name not in record["shards"]:
                continue  # every pair of it was rejected
            paths[kind.folder] = storage.join(folder, kind.file(shard.name))
            sha256 = record["shards"][shard.name]["sha256"]
            digest, digests[paths[kind.folder]] = digest_of(digest, sha256), sha256
        without_findings = tuple(sorted(rejected.get(shard.name, ())))
        files = FindingFiles(digest, **paths, rejected=without_findings, digests=digests)
        enriched.append(replace(shard, findings=files))
    return enriched


def _check_covered(
    folder: str,
    command: str,
    shard: PlannedShard,
    record: Mapping[str, Any],
    without: int,
) -> None:
    """Raises UserError if the job did not cover the shard.

    Args:
        without: Number of the shard's pairs that earlier jobs rejected.
    """
    covered = record["planned"].get(shard.name, 0) + without
    if covered < shard.count:
        raise UserError(
            f"{folder}: covers {covered} of the {shard.count} pairs of {shard.name}",
            f"Run cc-prep {command} with the same --split and --limit first",
        )
