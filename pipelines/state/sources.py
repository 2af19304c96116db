"""The data that the pairs of a folder come from: `data` in its provenance.

roots      the folders or URLs whose images were read, in order
pairs      how many pairs the data has, by split, whatever --limit took of them
splits     the manifest's
settings   settings that decide the pairs' captions and masks; for a split file a digest per split

The output of a job on sequences copies the entry of the sequences, so that a later job notices
other settings, other splits and missing pairs. Where a folder has no entry, nothing is compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from cc_prep import storage
from cc_prep.datasets.layouts import split_file
from cc_prep.errors import UserError
from cc_prep.formats import provenance
from cc_prep.formats.tar import split_of
from cc_prep.manifest import IMPORTED, Manifest
from cc_prep.redaction import without_credentials
from cc_prep.words import counted
from pipelines.plan import plan
from pipelines.shards import Pairs, PlannedShard

KEY = "data"
MAX_COMPARED = 10_000  # pairs: reading their captions again takes a second or two
SECTIONS = ("captions", "masks")  # of the manifest: the pairs have what they say


def of_pairs(manifest: Manifest, shards: Iterable[PlannedShard]) -> dict[str, Any]:
    """The entry of a job that reads pairs."""
    return {
        "roots": [_root(manifest)],
        "pairs": {
            shard.split: shard.source.available
            for shard in shards
            if isinstance(shard.source, Pairs)
        },
        "splits": list(manifest.splits),
        "settings": settings(manifest),
    }


def _root(manifest: Manifest) -> str:
    """The root as it is recorded, without the keys or the password in a URL."""
    return without_credentials(storage.absolute(manifest.root))


def of_stored(manifest: Manifest, folder: str) -> dict[str, Any]:
    """The entry of a job on the content of `folder`: a copy of its entry; empty if it has none."""
    recorded = recorded_in(provenance.read(folder))
    return {**recorded, "splits": list(manifest.splits)} if recorded else {}


def recorded_in(record: Mapping[str, Any] | None) -> dict[str, Any]:
    """The entry in a provenance; empty if there is none. Raises UserError if it is damaged."""
    recorded = (record or {}).get(KEY, {})
    if recorded and not _is_whole(recorded):
        raise UserError(
            f"{provenance.FILE} has a damaged section {KEY!r}",
            "Remove the section: then nothing is compared with it",
        )
    return dict(recorded)


def _is_whole(recorded: Any) -> bool:
    """Whether an entry has all keys that `of_pairs` writes, with values of the right types."""
    if not isinstance(recorded, dict):
        return False
    for name in ("roots", "splits"):
        values = recorded.get(name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            return False
    counts, sections = recorded.get("pairs"), recorded.get("settings")
    if not isinstance(counts, dict) or not isinstance(sections, dict):
        return False
    return all(isinstance(count, int) for count in counts.values()) and all(
        isinstance(sections.get(name), dict) for name in (*SECTIONS, "split_file")
    )


def settings(manifest: Manifest) -> dict[str, Any]:
    """The settings that decide the content of a pair, besides `recorded_settings`."""
    values = manifest.model_dump(mode="json", include={*SECTIONS})
    digests = {
        split: hashlib.sha256(json.dumps(sorted(ids)).encode()).hexdigest()
        for split, ids in split_file.ids(manifest).items()
    }
    return {**values, "split_file": digests}


def check_same(
    folder: str, recorded: Mapping[str, Any], new: Mapping[str, Any], planned: Collection[str] = ()
) -> None:
    """Raises UserError if pairs in `folder` have other captions, masks or splits than now.

    Args:
        new: The present `settings`.
        planned: Splits that may have grown, since other code compares their pairs one by one.
    """
    old = recorded.get("settings")
    if not old or not new:
        return
    different = provenance.differences(old, new, free={"split_file"})
    if different:
        raise UserError(
            f"the pairs in {folder} were read with other settings ({'; '.join(different[:5])})",
            "Use the same settings, or another --out for all steps",
        )
    changed = [
        split
        for split, digest in old.get("split_file", {}).items()
        if split not in planned and new["split_file"].get(split) != digest
    ]
    if changed:
        raise UserError(
            f"the split file has other pairs in {', '.join(changed)} than when {folder} was made",
            "Use the split file as it was, run all splits in one job, or give another --out",
        )


def check_not_renamed(
    folder: str, record: Mapping[str, Any], shards: Iterable[PlannedShard], splits: Collection[str]
) -> None:
    """Raises UserError if `folder` holds the pairs of a planned shard under another split's name.

    Args:
        splits: The manifest's; shards of these splits are not renamed ones. Nor is a shard that
            exists under its own name.
    """
    digests = {
        name: (one.get("input_digest"), record.get("planned", {}).get(name, 0))
        for name, one in record.get("shards", {}).items()
        if splits and split_of(name) not in splits
    }
    for shard in shards:
        for name, (digest, count) in digests.items():
            old_split, _, number = name.rpartition("-")
            if not isinstance(shard.source, Pairs) or int(number) != shard.source.index:
                continue
            if shard.name in record.get("shards", {}):
                continue
            pairs = tuple(replace(pair, split=old_split) for pair in shard.pairs)
            if (
                0 < count <= len(pairs)
                and replace(shard.source, pairs=pairs).digest(count) == digest
            ):
                raise UserError(
                    f"{folder} holds the pairs of the split {shard.split} as {old_split}, which "
                    "the manifest does not name",
                    f"Call the split {old_split} again, or give another --out",
                )


def joined(old: Mapping[str, Any], new: Mapping[str, Any], planned: Collection[str]) -> Any:
    """The entry of a folder after a run.

    Args:
        planned: The splits of the run.
    """
    if not new:
        return dict(old)
    was = old.get("settings", {}).get("split_file", {})
    now = new["settings"]["split_file"]
    digests = {**was, **{split: now[split] for split in now if split in planned}}
    return {
        "roots": list(dict.fromkeys([*old.get("roots", ()), *new["roots"]])),
        "pairs": {**old.get("pairs", {}), **new["pairs"]},
        "splits": new["splits"],
        "settings": {**new["settings"], "split_file": digests},
    }


def other_counts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """How many pairs each split of the data had in earlier runs, where it has others now."""
    before, now = old.get("pairs", {}), new.get("pairs", {})
    return [
        f"{split} had {counted(before[split], 'pair')} then and has {now[split]:,} now"
        for split in before
        if split in now and now[split] != before[split]
    ]


def note_other_root(
    folder: str, old: Mapping[str, Any], new: Mapping[str, Any], console: Console
) -> None:
    """Prints a note if images now come from another folder than in earlier runs."""
    earlier = old.get("roots", [])
    others = [root for root in new.get("roots", []) if root not in earlier]
    if earlier and others:
        console.print(
            f"images are read from {', '.join(others)}; what {folder} holds already was made from "
            f"{', '.join(earlier)}",
        )


def note_other_splits(planned: Iterable[str], new: Mapping[str, Any], console: Console) -> None:
    """Prints a note on splits of the folder's shards that the manifest does not name (any more)."""
    names = dict.fromkeys(split_of(name) for name in planned)
    others = [split for split in names if split not in new.get("splits", names)]
    if others:
        console.print(
            f"the folder also has shards of {', '.join(others)}, which the manifest does not name: "
            "if a split was renamed or left out, use another --out",
        )


def note_missing(folder: str, splits: Sequence[str], limit: int | None, console: Console) -> None:
    """Prints a note on splits for which `folder` has the sequences of only some pairs."""
    record = provenance.read(folder) or {}
    available = recorded_in(record).get("pairs", {})
    there = Counter[str]()
    for name, count in record.get("planned", {}).items():
        there[split_of(name)] += count
    for split in splits:
        total = available.get(split, 0)
        if 0 < there[split] < (total if limit is None else min(limit, total)):
            console.print(
                f"{folder} has sequences of {there[split]:,} of {total:,} pairs of {split}, made "
                "with --limit: the other pairs are left out. To take them too, run "
                f"{maker(record)} without --limit first",
            )


def note_changed(manifest: Manifest, folder: str, splits: Sequence[str], console: Console) -> None:
    """Prints a note on pairs of the data that changed since `folder` was made.

    It is skipped if the data has moved, since it may be other data, and if listing it would take
    long: for more than MAX_COMPARED pairs, for an object store, and for videos and rasters, each of
    which has to be opened.
    """
    record = provenance.read(folder) or {}
    recorded = recorded_in(record)
    if _root(manifest) not in recorded.get("roots", []):
        return
    if sum(recorded.get("pairs", {}).get(split, 0) for split in splits) > MAX_COMPARED:
        return
    if storage.is_remote(manifest.root) or manifest.layout in ("video", "rasters"):
        return
    try:
        shards = plan(manifest, splits)
    except UserError:  # it may be gone: what is stored needs it no more
        return
    planned, stored = record.get("planned", {}), record.get("shards", {})
    changed = [
        shard.name
        for shard in shards
        if shard.name in stored
        and stored[shard.name].get("input_digest") != shard.source.digest(planned.get(shard.name))
    ]
    if changed:
        console.print(
            f"the pairs of {', '.join(changed[:3])}{' …' if len(changed) > 3 else ''} in "
            f"{manifest.root} changed since {folder} was made (names, captions, labels or masks): "
            "the pairs as they were are taken. To take the change, interpolate into another --out",
        )
        return
    now = Counter[str]()
    for shard in shards:
        now[shard.split] += shard.count
    for split, before in recorded.get("pairs", {}).items():
        if now[split] > before:
            console.print(
                f"{manifest.root} now has {now[split]:,} pairs of {split}, and had {before:,} when "
                f"{folder} was made: the new ones are left out. To take them, run {maker(record)} "
                "again",
            )


def maker(record: Mapping[str, Any]) -> str:
    """The command that made the sequences of a provenance."""
    weights = record.get("settings", {}).get("interpolate", {}).get("weights")
    return "cc-prep import procap" if weights == IMPORTED else "cc-prep interpolate"
