"""Whether a folder of shards is what its provenance says: `cc-prep verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cc_prep import storage, strict_json
from cc_prep.errors import UserError
from cc_prep.formats import (
    captions,
    changes,
    entities,
    provenance,
    region_features,
    rejects,
    scores,
    sequences,
    tar,
    training_shards,
)
from cc_prep.formats.tar import ShardFormat, split_of
from cc_prep.progress import Progress, no_progress

FORMATS = (
    sequences.FORMAT,
    scores.FORMAT,
    changes.FORMAT,
    region_features.FORMAT,
    entities.FORMAT,
    training_shards.FORMAT,
    captions.FORMAT,
)
# Of these nothing depends on how frames are interpolated.
FRAMELESS = (
    changes.FORMAT.name,
    region_features.FORMAT.name,
    entities.FORMAT.name,
    captions.FORMAT.name,
)


def find(folder: str, kinds: tuple[ShardFormat, ...] = FORMATS) -> list[tuple[str, ShardFormat]]:
    """The outputs of jobs in `folder`: itself, or the folders in it that jobs write.

    Raises:
        UserError: If there is none.
    """
    by_name = {kind.name: kind for kind in kinds}
    outputs = []
    for candidate in (folder, *(storage.join(folder, kind.folder) for kind in kinds)):
        record = provenance.read(candidate) if storage.is_folder(candidate) else None
        if record is not None and record.get("format") in by_name:
            outputs.append((candidate, by_name[record["format"]]))
    if not outputs:
        names = ", ".join(kind.name for kind in kinds)
        inside = ", ".join(f"{kind.folder}/" for kind in kinds)
        raise UserError(
            f"{folder}: no {provenance.FILE} of {names} in it or in its {inside}",
            "Give the folder that `cc-prep` wrote",
        )
    return outputs


def find_one(folder: str, kind: ShardFormat) -> str:
    """The folder of one kind. Raises UserError."""
    return find(folder, (kind,))[0][0]


def verify(
    folder: str,
    kind: ShardFormat,
    progress: Progress = no_progress,
) -> list[str]:
    """Everything wrong with a folder of shards, each one line; nothing if all is well.

    Reads every byte: digests, sample counts against plan and rejects, and what each sample holds.
    """
    record = provenance.read(folder)
    assert record is not None
    try:
        planned = {str(k): int(v) for k, v in record["planned"].items()}
        shards: dict[str, dict[str, Any]] = dict(record["shards"])
        frames, codec = (0, "") if kind.name in FRAMELESS else _frames(record["settings"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return [f"{provenance.FILE}: lacks the plan, the shards or the settings"]
    faults = _missing_and_surplus(folder, kind, planned, shards)
    try:
        rejected = Counter(reject.shard for reject in rejects.read(folder))
    except tar.DamagedShard as error:
        return [*faults, str(error)]
    check = _CHECKS[kind.name]
    keys: dict[str, str] = {}
    index_metas: dict[str, dict[str, Any]] = {}

    def check_sample(key: str, sample: Any) -> list[str]:
        problems = check(key, sample, frames, codec)
        if kind.indexed and not problems:
            try:
                index_metas[key] = training_shards.index_meta(strict_json.loads(sample["json"]))
            except ValueError as error:
                return [f"{key}: {error}"]
        return problems

    for done, (name, facts) in enumerate(sorted(shards.items()), 1):
        faults += _shard_faults(folder, kind, name, facts, keys, check_sample)
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
    if kind.indexed:
        faults += _index_faults(folder, keys, index_metas)
    if kind is entities.FORMAT:
        faults += _vocabulary_faults(folder)
    return faults


def notes(folder: str) -> list[str]:
    """What is no fault of a folder, but may be one of its use: each one line."""
    record = provenance.read(folder) or {}
    data = record.get("data")
    named = data.get("splits") if isinstance(data, dict) else None
    named = named if isinstance(named, list) else []
    splits = sorted({split_of(str(name)) for name in record.get("shards", ())})
    others = [split for split in splits if named and split not in named]
    if not others:
        return []
    return [
        f"note: {folder} has shards of {', '.join(others)}, which the manifest of its last run "
        "does not name"
    ]


def _frames(settings: dict[str, Any]) -> tuple[int, str]:
    """How many frames a sequence has, and their codec. Raises KeyError and ValueError."""
    interpolate = settings["interpolate"]
    return 2 ** int(interpolate["depth"]) + 1, interpolate["codec"]


def _vocabulary_faults(folder: str) -> list[str]:
    try:
        entities.read_vocabulary(folder)
    except FileNotFoundError:
        return [f"{entities.VOCABULARY}: missing"]
    except tar.DamagedShard as error:
        return [str(error)]
    return []


def _missing_and_surplus(
    folder: str, kind: ShardFormat, planned: Mapping[str, int], shards: Mapping[str, Any]
) -> list[str]:
    others = {rejects.FILE, training_shards.INDEX, entities.VOCABULARY}
    files = {n for n in storage.list_files(folder, f".{kind.extension}") if n not in others}
    surplus = sorted(files - {kind.file(name) for name in planned})
    return [
        *(f"{name}: planned but not made" for name in planned if name not in shards),
        *(f"{name}: not in the plan" for name in surplus),
        *(
            f"{name}: left over by a killed job (the next run removes it)"
            for name in storage.list_files(folder, storage.TEMPORARY_SUFFIX)
        ),
    ]


def _shard_faults(
    folder: str,
    kind: ShardFormat,
    name: str,
    facts: dict[str, Any],
    keys: dict[str, str],
    check: Callable[[str, Any], list[str]],
) -> list[str]:
    file = kind.file(name)
    path = storage.join(folder, file)
    try:
        digest = storage.sha256(path)
    except FileNotFoundError:
        return [f"{file}: missing"]
    faults = []
    if digest != facts["sha256"]:
        faults.append(f"{file}: SHA-256 {digest[:12]}…, not {facts['sha256'][:12]}…")
    count = 0
    try:
        for key, sample in kind.read(path):
            count += 1
            if key in keys:
                faults.append(f"{file}: {key} is in {keys[key]} too")
            keys[key] = name
            faults += [f"{file}: {fault}" for fault in check(key, sample)]
    except tar.DamagedShard as error:
        faults.append(str(error))
    if count != facts["samples"]:
        faults.append(f"{file}: {count} samples, not {facts['samples']}")
    return faults


def _sequence_faults(key: str, members: dict[str, bytes], frames: int, codec: str) -> list[str]:
    try:
        sample = sequences.decode(key, members)
        pixels = sample.frames()
        truth = list(sample.truth().values())
        sample.masks()
    except (tar.DamagedShard, ValueError) as error:  # ValueError: frames of several sizes
        return [str(error) if str(error).startswith(key) else f"{key}: {error}"]
    faults = []
    if (len(pixels), sample.codec) != (frames, codec):
        faults.append(f"{key}: {len(pixels)} frames of {sample.codec}, not {frames} {codec}")
    size = (sample.meta.get("height"), sample.meta.get("width"))
    if any(image.shape[:2] != size for image in (pixels[0], *truth)):
        faults.append(f"{key}: an image is not {size[1]}×{size[0]}")
    return faults


def _score_faults(key: str, row: scores.Row, frames: int, codec: str) -> list[str]:
    try:
        scores.decode({"key": key, **row})
    except tar.DamagedShard as error:
        return [str(error)]
    faults = []
    if len(row["penalty"]) != frames:
        faults.append(f"{key}: {len(row['penalty'])} penalties for {frames} frames")
    if not all(0 <= frame < frames for frame in row["keyframes"]):
        faults.append(f"{key}: keyframes {row['keyframes']} of {frames} frames")
    return faults


def _training_faults(key: str, members: dict[str, bytes], frames: int, codec: str) -> list[str]:
    try:
        sample = training_shards.decode(key, members)
        for frame in sample.images:
            sample.image(frame)
        for mask in (sample.mask, sample.mask_before, sample.mask_after, sample.change):
            mask()
    except tar.DamagedShard as error:
        return [str(error)]
    faults = []
    if len(sample.tokens) != frames:
        faults.append(f"{key}: tokens of {len(sample.tokens)} frames, not {frames}")
    codes = sample.meta.get("codes", 0)
    if sample.tokens.size and (sample.tokens.min() < 0 or sample.tokens.max() >= codes):
        faults.append(f"{key}: a token is outside the codebook of {codes}")
    if list(members) != training_shards.ordered(members):
        faults.append(f"{key}: its members are not in their order")
    return faults


def _change_faults(key: str, members: dict[str, bytes], frames: int, codec: str) -> list[str]:
    try:
        changes.decode(key, members)
    except tar.DamagedShard as error:
        return [str(error)]
    return []


def _entity_faults(key: str, row: dict[str, Any], frames: int, codec: str) -> list[str]:
    try:
        entities.decode({"key": key, **row})
    except tar.DamagedShard as error:
        return [str(error)]
    return []


def _vector_faults(key: str, row: dict[str, Any], frames: int, codec: str) -> list[str]:
    try:
        region_features.decode(key, row)
    except tar.DamagedShard as error:
        return [str(error)]
    return []


def _caption_faults(key: str, row: dict[str, Any], frames: int, codec: str) -> list[str]:
    return []  # reading them has compared all that can be


_CHECKS: dict[str, Callable[[str, Any, int, str], list[str]]] = {
    sequences.FORMAT.name: _sequence_faults,
    scores.FORMAT.name: _score_faults,
    changes.FORMAT.name: _change_faults,
    region_features.FORMAT.name: _vector_faults,
    entities.FORMAT.name: _entity_faults,
    training_shards.FORMAT.name: _training_faults,
    captions.FORMAT.name: _caption_faults,
}


def _index_faults(
    folder: str, keys: Mapping[str, str], index_metas: Mapping[str, dict[str, Any]]
) -> list[str]:
    try:
        rows = training_shards.read_index(folder)
    except FileNotFoundError:
        return [f"{training_shards.INDEX}: missing"]
    except tar.DamagedShard as error:
        return [str(error)]
    if {row["key"]: row["shard"] for row in rows} != dict(keys) or len(rows) != len(keys):
        return [f"{training_shards.INDEX}: {len(rows)} rows do not name the {len(keys)} samples"]
    faults = [
        f"{training_shards.INDEX}: the row of {row['key']} is not what its .json says"
        for row in rows
        if any(row[name] != value for name, value in index_metas.get(row["key"], {}).items())
    ]
    return faults + _position_faults(folder, rows)


def _position_faults(folder: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Samples that are not where the index says, or are not the bytes whose CRC-32C it holds.

    A training reads them by these positions, and compares these checksums.
    """
    faults = []
    by_shard: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_shard.setdefault(row["shard"], []).append(row)
    for name, of_shard in sorted(by_shard.items()):
        path = storage.join(folder, training_shards.FORMAT.file(name))
        try:
            spans = tar.spans(path)
            checksums = tar.checksums(path, spans)
        except (tar.DamagedShard, FileNotFoundError):
            continue  # which is reported already
        for row in of_shard:
            key = row["key"]
            if (row["offset"], row["bytes"]) != spans.get(key):
                faults.append(f"{training_shards.INDEX}: {key} is not where its row says")
            elif row["crc32c"] != checksums[key]:
                faults.append(f"{training_shards.INDEX}: {key} has other bytes than its row says")
    return faults
