"""Shards to make from pairs or sequences, together with the changes and entities found in them.

These findings are in the folders of earlier jobs, in shards of the same names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cc_prep import storage, strict_json
from cc_prep.errors import UserError
from cc_prep.formats import (
    changes,
    entities,
    provenance,
    region_features,
    rejects,
    training_shards,
)
from cc_prep.formats.base import ShardFormat, require_as_written
from cc_prep.formats.changes import StoredChange
from cc_prep.formats.entities import Entity
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.tar import DamagedShard
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines import fingerprint
from pipelines.plan import ShardPlan
from pipelines.state.journal import Done
from pipelines.stored import ShardFromSequences, digest_of, finished_shards, whole_or_none

KINDS = (changes.FORMAT, entities.FORMAT)
# The shards that findings are put beside, by what their JSON calls them.
BARE_SHARDS: dict[str, type[ShardPlan | ShardFromSequences]] = {
    cls.TYPE: cls for cls in (ShardPlan, ShardFromSequences)
}


@dataclass(frozen=True)
class WithFindings:
    """A pair or a sequence with its found change, and with its entities if that job was run.

    change: None for a pair that `cc-prep changes` rejected; entities likewise.
    """

    item: ImagePair | StoredSequence
    change: StoredChange | None
    entities: tuple[Entity, ...] | None

    @property
    def key(self) -> str:
        return self.item.key

    @property
    def split(self) -> str:
        return self.item.split

    @property
    def id(self) -> str:
        return self.item.id

    @property
    def kind(self) -> str:
        return self.item.kind


@dataclass(frozen=True)
class ShardWithFindings:
    """A shard with the files of its found changes and entities, and their digest.

    digests: the recorded SHA-256 of these files by path. rejected: keys of pairs that one of these
    jobs rejected, and that are in no file therefore.
    """

    TYPE: ClassVar[str] = "findings"

    shard: ShardPlan | ShardFromSequences
    findings_digest: str
    changes: str
    entities: str | None = None
    rejected: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def split(self) -> str:
        return self.shard.split

    @property
    def count(self) -> int:
        return self.shard.count

    def items(self) -> Iterator[WithFindings]:
        """The items one by one.

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
        for item in self.shard.items():
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

    def digest(self) -> str:
        return digest_of(self.shard.digest(), self.findings_digest)

    def remaining(self, done: Done | None, retry_rejects: bool) -> ShardWithFindings | None:
        """The whole shard if it is missing or its input changed; None if it is finished.

        Raises UserError if it holds more than --limit now allows.
        """
        limited = isinstance(self.shard, ShardPlan) or self.shard.limited
        return whole_or_none(self, done, limited, "pairs", retry_rejects)

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON for a worker; `type` names the class, here and in `shard`."""
        return {
            "type": self.TYPE,
            "shard": self.shard.to_json(),
            "findings_digest": self.findings_digest,
            "changes": self.changes,
            "entities": self.entities,
            "rejected": self.rejected,
            "digests": self.digests,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardWithFindings:
        return cls(
            BARE_SHARDS[value["shard"]["type"]].from_json(value["shard"]),
            value["findings_digest"],
            value["changes"],
            value["entities"],
            tuple(value["rejected"]),
            value["digests"],
        )


@dataclass(frozen=True)
class Findings:
    """The found changes and entities in an OUT.

    settings: the sections of settings that made them. weights: SHA-256 by name.
    """

    settings: dict[str, Any]
    weights: dict[str, str]
    changes: dict[str, Any] | None = None
    entities: dict[str, Any] | None = None


def read_findings(
    manifest: Manifest, source: str, kinds: Sequence[ShardFormat] = KINDS
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
    shards: Sequence[ShardPlan | ShardFromSequences], source: str, findings: Findings
) -> Sequence[ShardPlan | ShardFromSequences] | Sequence[ShardWithFindings]:
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
        enriched.append(
            ShardWithFindings(shard, digest, **paths, rejected=without_findings, digests=digests)
        )
    return enriched


def _check_covered(
    folder: str,
    command: str,
    shard: ShardPlan | ShardFromSequences,
    record: Mapping[str, Any],
    without: int,
) -> None:
    """Raises UserError if the job did not cover the shard.

    without: number of the shard's pairs that earlier jobs rejected.
    """
    covered = record["planned"].get(shard.name, 0) + without
    if covered < shard.count:
        raise UserError(
            f"{folder}: covers {covered} of the {shard.count} pairs of {shard.name}",
            f"Run cc-prep {command} with the same --split and --limit first",
        )


def add_to(members: Mapping[str, bytes], item: WithFindings) -> dict[str, bytes]:
    """The members of a training sample, with the findings in its pair added."""
    complete = dict(members)
    meta = strict_json.loads(complete["json"])
    if item.change is not None:
        change = item.change.change
        assert (change.height, change.width) == (meta["height"], meta["width"]), item.key
        meta["regions"] = [region.to_json() for region in change.regions]
        if item.change.mask_png is not None:
            complete[changes.MASK] = item.change.mask_png
    if item.entities is not None:
        meta["entities"] = [[entity.phrase, entity.score] for entity in item.entities]
    complete["json"] = json.dumps(meta, sort_keys=True, ensure_ascii=False).encode()
    return {name: complete[name] for name in training_shards.ordered(complete)}
