"""Training shards as a list of samples: key, shard, place; read from the index or from the tars."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cc_prep import storage
from cc_prep.errors import UserError
from cc_prep.formats import training_shards
from cc_prep.formats.tar import LARGEST_JSON, DamagedShard, parts_of
from cc_prep.formats.training_shards import TrainingSample
from cc_train.data.sequence_index import expand

ADVICE = "Give shards that `cc-prep build` wrote, or make them anew"
BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True)
class Entry:
    """A sample of a shard."""

    key: str
    shard: str
    offset: int
    bytes: int

    @property
    def id(self) -> str:
        """What the change and the no-change pair of one scene share."""
        return self.key.rpartition("-")[0] or self.key

    def read(self) -> TrainingSample:
        """Raises DamagedShard, and FileNotFoundError."""
        return training_shards.read_at(self.shard, self.key, self.offset, self.bytes)

    def meta(self) -> dict[str, Any]:
        """The sample's JSON alone, which is its first member. Raises DamagedShard."""
        try:
            head = storage.read_range(self.shard, self.offset, BLOCK)
            size = tarfile.TarInfo.frombuf(head, "utf-8", "strict").size
            if not 0 <= size <= LARGEST_JSON:
                raise ValueError(f"declares {size:,} bytes of JSON")
            data = storage.read_range(self.shard, self.offset + BLOCK, size)
            found = json.loads(data)
        except (tarfile.TarError, ValueError, RecursionError) as error:
            raise DamagedShard(f"{self.shard}: {self.key}: {error}") from None
        if not isinstance(found, dict):
            raise DamagedShard(f"{self.shard}: {self.key}: its JSON is no object")
        return found


def read(patterns: Sequence[str]) -> list[Entry]:
    """All samples of some shards, in the order given. Raises UserError."""
    found: list[Entry] = []
    indices: dict[str, dict[str, list[Entry]] | None] = {}
    for place in expand(patterns):
        folder, _, name = place.rpartition("/")
        if folder not in indices:
            indices[folder] = _indexed(folder)
        listed = (indices[folder] or {}).get(name)
        entries = _scanned(place) if listed is None else listed
        if listed and storage.size(place) < listed[-1].offset + listed[-1].bytes:
            raise UserError(f"{place}: is cut short", ADVICE)
        found += entries
    if not found:
        raise UserError(f"{', '.join(patterns)}: no samples", ADVICE)
    twice = len(found) - len({entry.key for entry in found})
    if twice:
        raise UserError(f"{twice} keys are in these shards twice", "Give each data set once")
    return found


def metas(
    entries: Sequence[Entry], progress: Callable[[int], None] = lambda done: None
) -> list[dict[str, Any]]:
    """The JSON of every sample. Raises UserError for a damaged one."""
    found = []
    for done, entry in enumerate(entries, 1):
        try:
            found.append(entry.meta())
        except (DamagedShard, FileNotFoundError) as error:
            raise UserError(str(error), ADVICE) from None
        progress(done)
    return found


def _indexed(folder: str) -> dict[str, list[Entry]] | None:
    """Entries by file name from the folder's index; None where there is none."""
    try:
        rows = training_shards.read_index(folder or ".")
    except FileNotFoundError:
        return None
    except DamagedShard as error:
        raise UserError(f"{folder}: {error}", ADVICE) from None
    found: dict[str, list[Entry]] = {}
    for row in sorted(rows, key=lambda row: (row["shard"], row["offset"])):
        name = training_shards.FORMAT.file(row["shard"])
        place = f"{folder}/{name}" if folder else name
        found.setdefault(name, []).append(Entry(row["key"], place, row["offset"], row["bytes"]))
    return found


def _scanned(place: str) -> list[Entry]:
    """Entries by reading a tar's headers."""
    starts: dict[str, int] = {}
    try:
        with storage.open_read(place) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            end, last = 0, ""
            for member in tar:
                key, extension = parts_of(member, place)
                if key in starts and (key != last or extension == "json"):
                    raise DamagedShard(f"{place}: {member.name}: the key stands there twice")
                last = key
                if key not in starts and extension != "json":
                    raise UserError(f"{place}: {member.name} comes before its .json", ADVICE)
                starts.setdefault(key, member.offset)
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK
            if file.seek(0, 2) < end + 2 * BLOCK:
                raise UserError(f"{place}: is cut short", ADVICE)
    except DamagedShard as error:
        raise UserError(str(error), ADVICE) from None
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise UserError(f"{place}: {error}", ADVICE) from None
    places = [*starts.values(), end]
    return [
        Entry(key, place, start, following - start)
        for (key, start), following in zip(starts.items(), places[1:], strict=True)
    ]
