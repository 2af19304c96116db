"""Whether a folder of shards is what its provenance says: `cc-prep verify`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import provenance, rejects, sequences, tar


def find(folder: str, format: str = sequences.FORMAT, inside: str = sequences.FOLDER) -> str:
    """`folder` itself or the folder `inside` it, whichever holds provenance of `format`.

    Raises UserError if neither does.
    """
    for place in (folder, storage.join(folder, inside)):
        found = provenance.read(place) if storage.is_folder(place) else None
        if found is not None and found.get("format") == format:
            return place
    raise UserError(
        f"{folder}: no {provenance.FILE} of format {format} in it or in its {inside}/",
        "Give the folder that `cc-prep` wrote",
    )


def verify(
    folder: str, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Everything wrong with a folder of sequence shards, each one line; nothing if all is well.

    Reads every byte: digests, sample counts against plan and rejects, members, decodable images.
    """
    record = provenance.read(folder)
    assert record is not None
    try:
        planned = {str(k): int(v) for k, v in record["planned"].items()}
        shards: dict[str, dict[str, Any]] = dict(record["shards"])
        settings = record["settings"]["interpolate"]
        frames, codec = 2 ** int(settings["depth"]) + 1, str(settings["codec"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return [f"{provenance.FILE}: lacks the plan, the shards or the settings"]
    faults = [f"{name}: planned but not made" for name in planned if name not in shards]
    there = {name.removesuffix(".tar") for name in storage.list_files(folder, ".tar")}
    faults += [f"{name}.tar: not in the plan" for name in sorted(there - planned.keys())]
    faults += [
        f"{name}: left over by a killed job (the next run removes it)"
        for name in storage.list_files(folder, storage.TEMPORARY_SUFFIX)
    ]
    try:
        rejected = Counter(reject.shard for reject in rejects.read(folder))
    except (ValueError, TypeError) as error:  # no parquet, or with other columns
        return [*faults, f"{rejects.FILE}: {str(error).splitlines()[0]}"]
    keys: dict[str, str] = {}
    for done, (name, facts) in enumerate(sorted(shards.items()), 1):
        faults += _shard_faults(folder, name, facts, frames, codec, keys)
        if rejected[name] != facts["rejected"]:
            faults.append(
                f"{name}: {rejected[name]} rows in {rejects.FILE}, {facts['rejected']} expected"
            )
        if facts["samples"] + facts["rejected"] != planned.get(name):
            faults.append(
                f"{name}: {facts['samples']} samples and {facts['rejected']} rejects, "
                f"{planned.get(name)} planned"
            )
        progress(done, len(shards))
    return faults


def _shard_faults(
    folder: str, name: str, facts: dict[str, Any], frames: int, codec: str, keys: dict[str, str]
) -> list[str]:
    place = storage.join(folder, sequences.shard_file(name))
    try:
        found = _digest(place)
    except FileNotFoundError:
        return [f"{name}.tar: missing"]
    faults = []
    if found != facts["sha256"]:
        faults.append(f"{name}.tar: SHA-256 {found[:12]}…, not {facts['sha256'][:12]}…")
    count = 0
    try:
        for sample in sequences.read(place):
            count += 1
            if sample.key in keys:
                faults.append(f"{name}.tar: {sample.key} stands in {keys[sample.key]} too")
            keys[sample.key] = name
            faults += [f"{name}.tar: {fault}" for fault in _sample_faults(sample, frames, codec)]
    except tar.DamagedShard as error:
        faults.append(str(error))
    if count != facts["samples"]:
        faults.append(f"{name}.tar: {count} samples, not {facts['samples']}")
    return faults


def _sample_faults(sample: sequences.StoredSequence, frames: int, codec: str) -> list[str]:
    try:
        pixels = sample.frames()
        truth = list(sample.truth().values())
        mask = sample.mask()
    except (tar.DamagedShard, ValueError) as error:  # ValueError: frames of several sizes
        return [f"{sample.key}: {error}"]
    faults = []
    if (len(pixels), sample.codec) != (frames, codec):
        faults.append(f"{sample.key}: {len(pixels)} frames of {sample.codec}, not {frames} {codec}")
    size = (sample.meta.get("height"), sample.meta.get("width"))
    extra = [*truth, *([] if mask is None else [mask])]
    if any(image.shape[:2] != size for image in (pixels[0], *extra)):
        faults.append(f"{sample.key}: an image is not {size[1]}×{size[0]}")
    return faults


def _digest(place: str) -> str:
    digest = hashlib.sha256()
    with storage.open_read(place) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
