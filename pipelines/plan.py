"""The plan: which pair goes to which shard, in which order; a function of manifest and data.

It does not depend on workers, on existing files, or on Ray. So a run that is killed and resumed, or
made by another number of workers, gives the same shards.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from cc_prep import datasets
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines.state.journal import Done


@dataclass(frozen=True)
class ShardPlan:
    """A shard to make from pairs: one unit of work, one Ray Data block.

    existing_sha256: if given, the samples in the shard's present file are kept and only the others
        made, provided that the file has this SHA-256, which was recorded when it was written.
    available: number of pairs of the split in the data, whatever --limit takes of them.
    """

    TYPE: ClassVar[str] = "plan"

    split: str
    index: int
    pairs: tuple[ImagePair, ...]
    existing_sha256: str | None = None
    available: int = 0

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

    def remaining(self, done: Done | None, retry_rejects: bool) -> ShardPlan | None:
        """The part of the shard that is left to make; None if it is finished.

        A finished shard is left alone, unless its rejects are to be retried or the plan now has
        more pairs for it (a larger --limit); then what its file holds is kept, if the file is as it
        was written. Raises UserError if it was made from other pairs.
        """
        if done is None:
            return self
        if done.pairs > len(self.pairs):
            raise larger_already(self.name, f"{done.pairs} pairs", len(self.pairs))
        if done.input_digest != self.digest(done.pairs):
            raise UserError(
                f"the pairs of {self.name} changed since it was made (names, captions, labels, "
                "masks or true frames, or a video that could not be opened then), or it was made "
                "from sequences that are gone",
                "Give another --out, or interpolate again if the sequences are gone",
            )
        if done.pairs < len(self.pairs) or (retry_rejects and done.rejects):
            return replace(self, existing_sha256=done.sha256)
        return None

    def to_json(self) -> dict[str, Any]:
        """The shard as JSON for a worker; `type` names the class."""
        pairs = [pair.to_json() for pair in self.pairs]
        return {**asdict(self), "type": self.TYPE, "pairs": pairs}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ShardPlan:
        pairs = tuple(ImagePair.from_json(pair) for pair in value["pairs"])
        return cls(value["split"], value["index"], pairs, value["existing_sha256"])


def larger_already(shard: str, there: str, planned: int) -> UserError:
    """The error of a run that would shrink a finished shard."""
    return UserError(
        f"{shard} holds {there}, this run plans {planned}",
        "Give the same or a larger --limit, or another --out",
    )


def plan(manifest: Manifest, splits: Sequence[str], limit: int | None = None) -> list[ShardPlan]:
    """The shards of some splits; of each split at most `limit` pairs. Raises UserError."""
    shards = []
    for split in splits:
        pairs = ordered(datasets.pairs(manifest, split), manifest.shards.shuffle_seed)
        _check_keys(pairs)
        taken, size = pairs[:limit], manifest.shards.pairs_per_shard
        shards += [
            ShardPlan(split, index, tuple(taken[start : start + size]), available=len(pairs))
            for index, start in enumerate(range(0, len(taken), size))
        ]
    if not shards:
        raise UserError(
            f"{manifest.root}: no pairs in {', '.join(splits)}",
            f"Check it with: cc-prep inspect {manifest.name}",
        )
    return shards


def ordered(pairs: Sequence[ImagePair], seed: int | None) -> list[ImagePair]:
    """Pairs shuffled by a digest of seed and id; those of one id stay together.

    The published order has all colour changes first, so shards cut from it would each hold one
    change type. A digest gives the same order in any version of any library. seed: None keeps the
    order of the data.
    """
    if seed is None:
        return list(pairs)
    rank = {
        id: hashlib.sha256(f"{seed}:{id}".encode("utf-8", "surrogatepass")).digest()
        for id in {pair.id for pair in pairs}
    }
    return sorted(pairs, key=lambda pair: (rank[pair.id], pair.id))


def _check_keys(pairs: Sequence[ImagePair]) -> None:
    keys = sorted(pair.key for pair in pairs)
    for one, other in itertools.pairwise(keys):
        if one == other:
            raise UserError(f"two pairs have the key {one}", "Give each pair an id of its own")
