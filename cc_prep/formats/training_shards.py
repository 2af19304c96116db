"""Training shards: `shards/<split>-000000.tar`, a sample a pair.

<key>.json         ids, kind, change type, captions, sizes, networks, keyframes
<key>.tokens.npy   int16 [F, h, w], codebook indices of all frames
<key>.scores.npy   float32 [2, captions, F], what keyframes are drawn from
<key>.f00.jpg …    images of the keyframes, or of all frames, named by frame number

`index.parquet` says where each sample lies.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cc_prep import storage
from cc_prep.formats import tables, tar
from cc_prep.formats.sequences import facts
from cc_prep.formats.shard_format import ShardFormat
from cc_prep.media import images
from cc_prep.records import FrameSequence

INDEX = "index.parquet"
INDEX_SCHEMA = pa.schema(
    [("key", pa.string()), ("shard", pa.string()), ("offset", pa.int64()), ("bytes", pa.int64())]
)
FORMAT = ShardFormat(
    "cc-training-shards", 1, "shards", "tar", tar.write_shard, tar.read_shard, indexed=True
)


@dataclass(frozen=True)
class TrainingSample:
    """A sample of a shard, its arrays decoded.

    tokens: int16 [F, h, w]. scores: float32 [2, captions, F]. images: still encoded, by frame.
    """

    key: str
    meta: dict[str, Any]
    tokens: np.ndarray
    scores: np.ndarray
    images: dict[int, bytes]

    def image(self, frame: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB. Raises DamagedShard."""
        pixels = images.decode_stored(self.images.get(frame, b""))
        if pixels is None:
            raise tar.DamagedShard(f"{self.key}: no image of frame {frame}")
        return pixels


def encode(
    sequence: FrameSequence,
    tokens: np.ndarray,
    scores: np.ndarray,
    kept: list[int],
    quality: int,
    about: Mapping[str, Any],
) -> dict[str, bytes]:
    """A sample's members by extension, in the order in which they are stored.

    kept: frames whose images are stored. about: interpolator, scorer, tokenizer, keyframes.
    """
    frames = sequence.frames
    count, height, width = frames.shape[:3]
    assert tokens.shape[0] == count
    assert scores.shape[::2] == (2, count), scores.shape
    meta = {**facts(sequence.pair), "frames": count, "height": height, "width": width, **about}
    members = {
        "json": json.dumps(meta, sort_keys=True, ensure_ascii=False).encode(),
        "tokens.npy": _npy(tokens.astype(np.int16)),
        "scores.npy": _npy(scores.astype(np.float32)),
    }
    for frame in kept:
        members[f"f{frame:02d}.jpg"] = images.encode_image(frames[frame], "jpg", quality)
    return members


def decode(key: str, members: Mapping[str, bytes]) -> TrainingSample:
    """A sample from its members. Raises DamagedShard for any that does not hold what it should."""
    try:
        meta = json.loads(members["json"])
        tokens, scores = (_array(members[name]) for name in ("tokens.npy", "scores.npy"))
        frames = meta["frames"]
    except (KeyError, ValueError, TypeError, EOFError, RecursionError) as error:
        raise tar.DamagedShard(f"{key}: {type(error).__name__}: {error}") from None
    if tokens.dtype != np.int16 or tokens.ndim != 3 or len(tokens) != frames:
        raise tar.DamagedShard(f"{key}: tokens are {tokens.dtype} {tokens.shape}")
    if scores.dtype != np.float32 or scores.ndim != 3 or scores.shape[::2] != (2, frames):
        raise tar.DamagedShard(f"{key}: scores are {scores.dtype} {scores.shape}")
    pictures = {
        int(name[1:3]): data
        for name, data in members.items()
        if name[0] == "f" and name[1:3].isdigit()
    }
    return TrainingSample(key, meta, tokens, scores, pictures)


def read(place: str) -> Iterator[TrainingSample]:
    """The samples of a shard, one in memory at a time. Raises DamagedShard."""
    for key, members in tar.read_shard(place):
        yield decode(key, members)


def write_index(folder: str, shards: Mapping[str, tuple[Mapping[str, int], int]]) -> None:
    """Writes the index from each shard's offsets by key and its size."""
    rows = []
    for shard, (offsets, size) in sorted(shards.items()):
        ordered = sorted(offsets.items(), key=lambda item: item[1])
        # What ends a tar (zero blocks, padding) is counted to the last sample.
        ends = [offset for _, offset in ordered[1:]] + [size]
        for (key, offset), end in zip(ordered, ends, strict=True):
            rows.append({"key": key, "shard": shard, "offset": offset, "bytes": end - offset})
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, INDEX_SCHEMA), buffer)
    storage.write_bytes(storage.join(folder, INDEX), buffer.getvalue())


def read_index(folder: str) -> list[dict[str, Any]]:
    """The rows of the index. Raises FileNotFoundError, and DamagedShard for no such table."""
    return tables.rows(storage.read_bytes(storage.join(folder, INDEX)), INDEX_SCHEMA, INDEX)


def lookup(folder: str, key: str) -> TrainingSample | None:
    """One sample by its key, through the index; None if it is not there. Raises DamagedShard."""
    for row in read_index(folder):
        if row["key"] == key:
            place = storage.join(folder, FORMAT.file(row["shard"]))
            return read_at(place, key, row["offset"], row["bytes"])
    return None


def read_at(place: str, key: str, offset: int, size: int) -> TrainingSample:
    """The sample that lies at some bytes of a shard. Raises DamagedShard."""
    data = storage.read_range(place, offset, size)
    for found, members in tar.read_members(io.BytesIO(data), f"{place}[{key}]"):
        if found == key:
            try:
                return decode(key, members)
            except tar.DamagedShard as error:
                raise tar.DamagedShard(f"{place}: {error}") from None
    raise tar.DamagedShard(f"{place}: {key} is not where the index says")


def _array(data: bytes) -> np.ndarray:
    try:
        found: np.ndarray = np.load(io.BytesIO(data), allow_pickle=False)
    except Exception as error:  # NumPy parses the header as Python and raises nearly every type
        raise ValueError(str(error).partition("\n")[0]) from None
    if not isinstance(found, np.ndarray):
        raise ValueError("no .npy array")
    return found


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
