"""The samples of training shards as items, against which captions are scored."""

from __future__ import annotations

from collections.abc import Sequence

from cc_prep.errors import UserError
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry
from cc_train.evaluation.captions import coco
from cc_train.evaluation.captions.coco import Item


def captioned(shards: Sequence[str]) -> tuple[list[Entry], list[Item]]:
    """The samples that have captions, as entries and as items. Raises UserError."""
    entries, items, _ = with_uncaptioned(shards)
    return entries, items


def with_uncaptioned(shards: Sequence[str]) -> tuple[list[Entry], list[Item], list[Item]]:
    """The samples that have captions, as entries and as items, and the items without captions.

    Raises:
        UserError: Where no sample has a caption.
    """
    entries = shard_index.read(shards)
    metas = zip(shard_index.metas(entries), shard_index.facts(entries), strict=True)
    listed = coco.items([{**meta, "facts": facts} for meta, facts in metas])
    pairs = [pair for pair in zip(entries, listed, strict=True) if pair[1].references]
    if not pairs:
        raise UserError("no sample of these shards has a caption", "Give a captioned split")
    without = [item for item in listed if not item.references]
    return [entry for entry, _ in pairs], [item for _, item in pairs], without
