"""Found changes and entities in figures, and masks against true ones: `cc-prep stats`."""

from __future__ import annotations

import posixpath
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from cc_prep import storage
from cc_prep.formats import changes, entities, provenance, sequences, training_shards
from cc_prep.formats.changes import StoredChange
from cc_prep.formats.sequences import StoredSequence
from cc_prep.formats.training_shards import TrainingSample
from cc_prep.inspect.stats import spread
from cc_prep.progress import Progress, no_progress
from cc_prep.records import CHANGE
from cc_prep.steps.changes.finding import iou

SHOWN = 8  # phrases


def figures(
    folder: str, most: int | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """How much was found, and the IoU of found and true masks over the changed pairs.

    True masks are read from the sequences or the training shards in the same OUT; without them the
    figures say nothing of the truth.

    Raises DamagedShard.

    Args:
        most: Look at about so many pairs only.
    """
    record = provenance.read(folder) or {}
    shard_records: dict[str, dict[str, Any]] = record.get("shards", {})
    counts: Counter[str] = Counter()
    regions: list[int] = []
    shares: dict[str, list[float]] = defaultdict(list)
    ious: list[float] = []
    shards = spread(shard_records, most)
    for done, name in enumerate(shards, 1):
        truth = true_masks(folder, name)
        for stored in changes.read(storage.join(folder, changes.FORMAT.file(name))):
            change, marked = stored.change, marked_pixels(stored)
            counts["found"] += change.mask is not None
            counts["capped"] += change.capped
            counts["filled instead"] += sum(not region.kept for region in change.regions)
            regions.append(len(change.regions))
            shares[stored.kind].append(float(marked.mean()))
            mask = truth.get(stored.key)
            if mask is not None and stored.kind == CHANGE and mask.shape == marked.shape:
                ious.append(iou(marked, mask))
        progress(done, len(shards))
    result: dict[str, Any] = {
        "changes": sum(facts["samples"] for facts in shard_records.values()),
        "changes looked at": len(regions),
        "pairs in which a change was found": counts["found"],
        "pairs of which too much differs": counts["capped"],
        "regions a pair": round(float(np.mean(regions)), 2) if regions else 0.0,
        "regions whose mask did not fit": counts["filled instead"],
        "marked share by kind": {
            kind: round(float(np.mean(values)), 4) for kind, values in sorted(shares.items())
        },
    }
    if ious:
        result["found against true masks"] = {
            "IoU of changed pairs": round(float(np.mean(ious)), 4),
            "pairs": len(ious),
        }
    return result


def entity_figures(
    folder: str, most: int | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """How many pairs have entities, and the phrases that are named most. Raises DamagedShard."""
    record = provenance.read(folder) or {}
    shards = spread(record.get("shards", {}), most)
    best: Counter[str] = Counter()
    count = 0
    for done, name in enumerate(shards, 1):
        path = storage.join(folder, entities.FORMAT.file(name))
        for key, row in entities.read_shard(path):
            count += 1
            best.update(one.phrase for one in entities.decode({"key": key, **row})[:1])
        progress(done, len(shards))
    return {
        "pairs asked for entities": count,
        "pairs with an entity": best.total(),
        "best entities": dict(best.most_common(SHOWN)),
    }


def no_figures(
    folder: str, most: int | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """None: region vectors say nothing to a reader."""
    return {}


def marked_pixels(stored: StoredChange) -> np.ndarray:
    """The found mask, bool [H, W]; all False where nothing was found."""
    change = stored.change
    if change.mask is None:
        return np.zeros((change.height, change.width), bool)
    return change.mask


def true_masks(folder: str, shard: str) -> dict[str, np.ndarray]:
    """True masks bool [H, W] of a shard by key, from folders beside the found changes."""
    beside = posixpath.dirname(storage.absolute(folder).rstrip("/"))
    for kind, read in (
        (sequences.FORMAT, sequences.read),
        (training_shards.FORMAT, training_shards.read),
    ):
        path = storage.join(beside, kind.folder, kind.file(shard))
        if not storage.exists(path):
            continue
        masks = {sample.key: _true_mask(sample) for sample in read(path)}
        if any(mask is not None for mask in masks.values()):
            return {key: mask > 0 for key, mask in masks.items() if mask is not None}
    return {}


def _true_mask(sample: StoredSequence | TrainingSample) -> np.ndarray | None:
    return sample.masks().union if isinstance(sample, StoredSequence) else sample.mask()
