"""The classes of planned shards, by the `type` in the JSON that a worker gets."""

from __future__ import annotations

from typing import Any

from pipelines.plan import ShardPlan
from pipelines.regions.findings import ShardWithFindings
from pipelines.regions.shards import ShardOfRegions
from pipelines.shards import Shard
from pipelines.stored import ShardFromSequences

SHARDS: dict[str, type[ShardPlan | ShardFromSequences | ShardWithFindings | ShardOfRegions]] = {
    cls.TYPE: cls for cls in (ShardPlan, ShardFromSequences, ShardWithFindings, ShardOfRegions)
}


def shard_from_json(value: dict[str, Any]) -> Shard:
    """The shard that its JSON describes."""
    return SHARDS[value["type"]].from_json(value)
