"""Training shards as a list of samples: the JSON that a trainer needs, and each one's position.

They are read from `index.parquet` if it is beside the shards, else from the tars themselves.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

from cc_prep import storage, strict_json
from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.formats.tar import END_MARK, DamagedShard, check_end, open_tar, padded_end, parts_of
from cc_prep.formats.training_shards import INDEX_META, TrainingSample
from cc_prep.records import Facts
from cc_prep.words import counted
from cc_train.data.sequence_index import expand

# Bytes of a sample of a renderer that surely hold its JSON, about 2,000 of them; and how many
# samples are asked for at a time, which counts where each is a request to a store.
JSON_READ, READERS = 16 * 1024, 16
POSITION = ("key", "shard", "offset", "bytes", "crc32c")  # columns of each row of an index
ADVICE = "Give shards that `cc-prep build` wrote, or rebuild them"
NAMES = "If these are two data sets, build one under another name: cc-prep build … --set name=…"


@dataclass(frozen=True)
class Entry:
    """A sample of a shard: its position, and the part of its JSON that the index holds.

    Attributes:
        shard: The path or URL of the tar.
        offset, bytes: The range of the tar that its members take.
        crc32c: The checksum of these bytes; None where it is not known, as without an index.
        height, width: Of its frames, in px.
        tokenizer_sha256: Digest of the VQGAN that made its tokens.
        mask_classes: Names of the classes of its masks; empty if it has no mask. Any other key that
            the JSON lacks is None.
    """

    key: str
    shard: str
    offset: int
    bytes: int
    crc32c: int | None = None
    dataset: str | None = None
    split: str | None = None
    id: str | None = None
    image_id: str | None = None
    kind: str | None = None
    change_type: str | None = None
    captions: tuple[str, ...] = ()
    before: str | None = None
    after: str | None = None
    frames: int | None = None
    height: int | None = None
    width: int | None = None
    tokenizer: str | None = None
    tokenizer_sha256: str | None = None
    mask_classes: tuple[str, ...] = ()

    @property
    def scene(self) -> str:
        """The part of the key that the change and the no-change pair of a scene share."""
        return scene_of(self.key)

    def meta(self) -> dict[str, Any]:
        """The part of the sample's JSON that the index holds, and its key; reads no file."""
        known = {name: getattr(self, name) for name, _ in INDEX_META}
        lists = {"captions": list(self.captions), "mask_classes": list(self.mask_classes)}
        return {"key": self.key, **known, **lists}

    def read(self) -> TrainingSample:
        """The sample, read from its shard, its checksum compared where it is known.

        Raises DamagedShard and FileNotFoundError.
        """
        return training_shards.read_at(self.shard, self.key, self.offset, self.bytes, self.crc32c)


def read(patterns: Sequence[str]) -> list[Entry]:
    """All samples of some shards, in the order given. Raises UserError."""
    entries_of_all = list(chain.from_iterable(_by_shard(expand(patterns))))
    if not entries_of_all:
        raise UserError(f"{', '.join(patterns)}: no samples", ADVICE)
    _require_distinct_keys(entries_of_all)
    return entries_of_all


def count(paths: Sequence[str]) -> int:
    """How many samples some shards have. Raises UserError."""
    return sum(map(len, _by_shard(paths)))


def _by_shard(paths: Sequence[str]) -> Iterator[list[Entry]]:
    indices: dict[str, dict[str, list[Entry]] | None] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder not in indices:
            indices[folder] = _indexed(folder)
        indexed = (indices[folder] or {}).get(name)
        if indexed and storage.size(path) < indexed[-1].offset + indexed[-1].bytes + END_MARK:
            raise UserError(f"{path}: is cut short", ADVICE)
        yield _scanned(path) if indexed is None else indexed


def metas(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The part of every sample's JSON that the index holds; reads no file."""
    return [entry.meta() for entry in entries]


def facts(entries: Sequence[Entry], unreadable: set[str] | None = None) -> list[Any]:
    """The facts (what truly changed) in the JSON of every sample; None for a sample without.

    The index does not hold them, so every sample is read; but of a folder's data set whose first
    sample has no facts, and so was not rendered, only that one is read.

    Args:
        unreadable: A set to which the keys of samples that cannot be read are added; their facts
            are then None. Without it they raise UserError.
    """
    rendered: dict[tuple[str | None, str], bool] = {}
    listed = []
    for entry in entries:
        value = None
        if rendered.get(_build(entry), True):
            try:
                value = entry.read().meta.get("facts")
            except (DamagedShard, FileNotFoundError) as error:
                if unreadable is None:
                    raise UserError(f"{entry.shard}: {error}", ADVICE) from None
                unreadable.add(entry.key)
            else:
                rendered.setdefault(_build(entry), value is not None)
        listed.append(value)
    return listed


def reversed_captions(entries: Sequence[Entry]) -> list[str]:
    """The captions that a renderer wrote of the samples' pairs in reverse order.

    They are in the samples' facts, which the index does not hold, so the first `JSON_READ` bytes of
    every sample are read, and more only where its JSON is longer; of a folder's data set whose
    first sample has no facts only that one. A sample that cannot be read has none here: who reads
    it for a batch says what is wrong with it.

    Raises:
        UserError: For facts of another form.
    """
    builds: dict[tuple[str | None, str], list[Entry]] = {}
    for entry in entries:
        builds.setdefault(_build(entry), []).append(entry)
    captions: list[str] = []
    with ThreadPoolExecutor(READERS, "json") as pool:
        for of_build in builds.values():
            rest = iter(of_build)
            first = next((facts for facts, is_read in map(_facts_at, rest) if is_read), None)
            if first is not None:
                others = (facts for facts, _ in pool.map(_facts_at, rest))
                known = (facts for facts in chain([first], others) if facts is not None)
                captions += [one for facts in known for one in facts.reversed_captions]
    return captions


def _facts_at(entry: Entry) -> tuple[Facts | None, bool]:
    """The facts in a sample's JSON, if there are any, and whether the JSON can be read."""
    try:
        meta = _json_of(entry)
    except (DamagedShard, FileNotFoundError):
        return None, False
    return Facts.of_sample({**meta, "key": entry.key}), True


def _json_of(entry: Entry) -> dict[str, Any]:
    """The JSON of a sample, which is its first member. Raises DamagedShard, FileNotFoundError."""
    data = storage.read_range(entry.shard, entry.offset, min(JSON_READ, entry.bytes))
    try:
        header, data = data[: tarfile.BLOCKSIZE], data[tarfile.BLOCKSIZE :]
        member = tarfile.TarInfo.frombuf(header, tarfile.ENCODING, "surrogateescape")
        if parts_of(member, entry.shard) != (entry.key, "json"):
            raise DamagedShard(f"{entry.shard}: {entry.key} is not where the index says")
        if len(data) < member.size:
            at = entry.offset + len(header) + len(data)
            data += storage.read_range(entry.shard, at, member.size - len(data))
        meta = strict_json.loads(data[: member.size])
    except (tarfile.TarError, ValueError, RecursionError) as error:
        raise DamagedShard(f"{entry.shard}: {entry.key}: {error}") from None
    if not isinstance(meta, dict):
        raise DamagedShard(f"{entry.shard}: {entry.key}: its .json is no object")
    return meta


def require_facts(entries: Sequence[Entry]) -> None:
    """Refuses samples without facts (what truly changed), for a training that learns them.

    Reads the first sample of each data set in each folder.

    Raises:
        UserError: Where none of them has facts.
    """
    first = {_build(entry): entry for entry in reversed(entries)}
    if not any(value is not None for value in facts([*first.values()])):
        raise UserError(
            "facts: none of these data sets says what truly changed",
            "Give shards of scenes that `cc-prep synth` rendered, or add --set facts=null",
        )


def _build(entry: Entry) -> tuple[str | None, str]:
    """The data set and folder of a sample: several data sets may have the same name."""
    return entry.dataset, entry.shard.rpartition("/")[0]


def scene_of(key: str) -> str:
    """The part of a key that the pairs of a scene share: the key without the kind of pair."""
    return key.rpartition("-")[0] or key


def require_tokenizer(entries: Sequence[Entry], sha256: str | None, name: str) -> None:
    """Refuses samples whose tokens were made by another tokenizer, for networks that read tokens.

    Args:
        sha256, name: Digest and name of the tokenizer's weights, as settings and index hold them.

    Raises:
        UserError: For the first sample with other tokens.
    """
    for entry in entries:
        if entry.tokenizer_sha256 is None or entry.tokenizer_sha256 != sha256:
            raise UserError(
                f"{entry.shard}: {entry.key} holds tokens of "
                f"{_tokenizer_words(entry.tokenizer, entry.tokenizer_sha256)}, where those of "
                f"{_tokenizer_words(name, sha256)} are wanted",
                "Rebuild these shards with that tokenizer (the same tokenize.weights and "
                "tokenize.config), or give others",
            )


def _tokenizer_words(name: str | None, sha256: str | None) -> str:
    digest = f"SHA-256 {sha256[:12]}…" if sha256 else "no digest"
    return f"{name or 'no tokenizer'} ({digest})"


def _entry(shard: str, row: Mapping[str, Any]) -> Entry:
    """The entry for a row of the index."""
    known = {name: row[name] for name, _ in INDEX_META}
    known |= {name: tuple(known[name] or ()) for name in ("captions", "mask_classes")}
    return Entry(row["key"], shard, row["offset"], row["bytes"], row.get("crc32c"), **known)


def _indexed(folder: str) -> dict[str, list[Entry]] | None:
    """Entries by file name from the folder's index; None where there is none."""
    try:
        rows = training_shards.read_index(folder or ".")
    except FileNotFoundError:
        return None
    except DamagedShard as error:
        raise UserError(f"{folder}: {error}", ADVICE) from None
    entries: dict[str, list[Entry]] = {}
    if any(row[name] is None for row in rows for name in POSITION):
        raise UserError(f"{folder}: {training_shards.INDEX} has empty rows", ADVICE)
    for row in sorted(rows, key=lambda row: (row["shard"], row["offset"])):
        name = training_shards.FORMAT.file(row["shard"])
        path = f"{folder}/{name}" if folder else name
        entries.setdefault(name, []).append(_entry(path, row))
    return entries


def first_of_shards(entries: Sequence[Entry]) -> list[Entry]:
    """The first entry of each shard."""
    return [*{entry.shard: entry for entry in reversed(entries)}.values()]


def _require_distinct_keys(entries: Sequence[Entry]) -> None:
    """Raises UserError for a key of several samples."""
    repeated = [key for key, n in Counter(entry.key for entry in entries).items() if n > 1]
    if repeated:
        raise UserError(
            f"{counted(len(repeated), 'key')} in these shards more than once, such as "
            f"{min(repeated)}",
            f"Give each data set once. {NAMES}",
        )


def _scanned(path: str) -> list[Entry]:
    """Entries by reading a tar's headers and each sample's JSON."""
    rows: dict[str, dict[str, Any]] = {}
    try:
        with storage.open_read(path) as file, open_tar(file) as tar:
            end, last = 0, ""
            for member in tar:
                key, extension = parts_of(member, path)
                if key in rows and (key != last or extension == "json"):
                    raise DamagedShard(f"{path}: {member.name}: the key occurs twice")
                if key not in rows:
                    if extension != "json":
                        raise UserError(f"{path}: {member.name} comes before its .json", ADVICE)
                    content = tar.extractfile(member)
                    meta = strict_json.loads(content.read() if content else b"")
                    if not isinstance(meta, dict):
                        raise ValueError(f"{key}: its .json is no object")
                    known = training_shards.index_meta(meta)
                    rows[key] = {"key": key, "offset": member.offset, **known}
                last = key
                end = padded_end(member)
                rows[key]["bytes"] = end - rows[key]["offset"]
            check_end(file, end, path)
    except DamagedShard as error:
        raise UserError(str(error), ADVICE) from None
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: {error}", ADVICE) from None
    return [_entry(path, row) for row in rows.values()]
