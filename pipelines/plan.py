"""The plan: which pair goes to which shard, in which order; a function of manifest and data.

It does not depend on workers, on existing files, or on Ray. So a run that is killed and resumed, or
made by another number of workers, gives the same shards.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence

from cc_prep import datasets
from cc_prep.errors import UserError
from cc_prep.manifest import Manifest
from cc_prep.records import ImagePair
from pipelines import estimates
from pipelines.shards import PlannedShard, of_pairs


def plan(manifest: Manifest, splits: Sequence[str], limit: int | None = None) -> list[PlannedShard]:
    """The shards of some splits; of each split at most `limit` pairs. Raises UserError."""
    shards = []
    for split in splits:
        pairs = ordered(datasets.pairs(manifest, split), manifest.shards.shuffle_seed)
        _check_keys(pairs)
        taken = pairs[:limit]
        size = _pairs_per_shard(manifest, taken[0]) if taken else 1
        shards += [
            of_pairs(split, index, taken[start : start + size], len(pairs))
            for index, start in enumerate(range(0, len(taken), size))
        ]
    if not shards:
        raise UserError(
            f"{manifest.root}: no pairs in {', '.join(splits)}",
            f"Check it with: cc-prep inspect {manifest.name}",
        )
    return shards


def _pairs_per_shard(manifest: Manifest, first: ImagePair) -> int:
    """The number that the manifest gives, or fewer where `shards.max_mb` asks for smaller shards.

    The size is estimated from the first pair: what the shards really have is known too late, since
    a pair must be in the same shard whoever makes it, and whatever is there already.
    """
    settings = manifest.shards
    if settings.max_mb is None:
        return settings.pairs_per_shard
    fitting = int(settings.max_mb * 1e6) // estimates.training_bytes(manifest, first)
    return max(1, min(settings.pairs_per_shard, fitting))


def ordered(pairs: Sequence[ImagePair], seed: int | None) -> list[ImagePair]:
    """Pairs shuffled by a digest of seed and id; those of one id stay together.

    The published order has all colour changes first, so shards cut from it would each hold one
    change type. A digest gives the same order in any version of any library.

    Args:
        seed: None keeps the order of the data.
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
