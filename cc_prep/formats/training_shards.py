"""Training shards: `shards/<split>-000000.tar`, a sample a pair.

<key>.json           ids, kind, change type, captions, facts, sizes, networks, keyframes
<key>.tokens.npy     int16 [F, h, w], codebook indices of all frames
<key>.scores.npy     float32 [2, captions, F], what keyframes are drawn from
<key>.features.npy   float16 or float32 [frames, channels, h, w], of a backbone, where made
<key>.mirrored.npy   the same of the mirrored images, where made
<key>.mask.png       class ids of where something changed, where the data set has it
<key>.mask_before.png, .mask_after.png    what vanished, what appeared, if the data set has both
<key>.change.png     255 where `cc-prep changes` found a change, where it found one
<key>.f00.jpg …      images of the keyframes, or of all frames, named by frame number

`index.parquet` holds each sample's position and the CRC-32C of its bytes, and the entries that a
trainer needs of all samples.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from cc_prep import npy, storage, strict_json
from cc_prep.formats import changes, sequences, tables, tar
from cc_prep.formats.sequences import number_of, pair_meta
from cc_prep.formats.tar import ShardFormat
from cc_prep.media import images
from cc_prep.records import FrameSequence, Preprocessing, are_scores

INDEX = "index.parquet"
# What the index takes over of a sample's JSON.
INDEX_META = (
    ("dataset", pa.string()),
    ("split", pa.string()),
    ("id", pa.string()),
    ("image_id", pa.string()),
    ("kind", pa.string()),
    ("change_type", pa.string()),
    ("captions", pa.list_(pa.string())),
    ("before", pa.string()),
    ("after", pa.string()),
    ("frames", pa.int32()),
    ("height", pa.int32()),
    ("width", pa.int32()),
    ("tokenizer", pa.string()),
    ("tokenizer_sha256", pa.string()),
    (sequences.MASK_CLASSES, pa.list_(pa.string())),
)
INDEX_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("crc32c", pa.uint32()),
        *INDEX_META,
    ]
)
MEMBERS = (
    "json",
    "tokens.npy",
    "scores.npy",
    "features.npy",
    "mirrored.npy",
    *sequences.MASKS,
    changes.MASK,
)  # and the images


@dataclass(frozen=True)
class Features:
    """What a frozen backbone makes of some frames.

    Attributes:
        backbone: Its name.
        sha256: The digest of its weights; of a library's, also of the preprocessing.
        frames: Their numbers, ascending.
        values: float16 or float32 [frames, channels, h, w].
        mirrored: The same of the images with left and right exchanged, where they are stored too.
        preprocessing: That of a library's backbone.
    """

    backbone: str
    sha256: str
    frames: tuple[int, ...]
    values: np.ndarray
    mirrored: np.ndarray | None = None
    preprocessing: Preprocessing | None = None

    def meta(self) -> dict[str, Any]:
        """The description of these features in a sample's JSON."""
        meta: dict[str, Any] = {
            "backbone": self.backbone,
            "sha256": self.sha256,
            "frames": list(self.frames),
        }
        if self.preprocessing is not None:
            meta["preprocessing"] = self.preprocessing.model_dump(mode="json")
        return meta


@dataclass(frozen=True)
class TrainingSample:
    """A sample of a shard, its arrays decoded.

    Attributes:
        tokens: int16 [F, h, w].
        scores: float32 [2, captions, F].
        images: Still encoded, by frame.
        features: Of some frames, where the shard has them. mask_png, mask_before_png,
            mask_after_png and change_png, the found mask: still encoded, where it has them.
    """

    key: str
    meta: dict[str, Any]
    tokens: np.ndarray
    scores: np.ndarray
    images: dict[int, bytes]
    features: Features | None = None
    mask_png: bytes | None = None
    mask_before_png: bytes | None = None
    mask_after_png: bytes | None = None
    change_png: bytes | None = None

    def image(self, frame: int) -> np.ndarray:
        """uint8 [H, W, 3] RGB. Raises DamagedShard."""
        pixels = images.decode_stored(self.images.get(frame, b""))
        if pixels is None:
            raise tar.DamagedShard(f"{self.key}: no image of frame {frame}")
        return pixels

    def mask(self) -> np.ndarray | None:
        """Class ids uint8 [H, W] of where something changed: 0 unchanged, 1 … K `mask_classes`.

        None where it is not known.

        Raises:
            DamagedShard: For one that is no image of the frames' size, or has a class that the JSON
                does not name.
        """
        return sequences.decode_mask(self.key, sequences.MASK, self.mask_png, self.meta)

    def mask_before(self) -> np.ndarray | None:
        """What vanished, where it is in the before image; encoded as `mask`."""
        return sequences.decode_mask(
            self.key, sequences.MASK_BEFORE, self.mask_before_png, self.meta
        )

    def mask_after(self) -> np.ndarray | None:
        """What appeared, where it is in the after image; encoded as `mask`."""
        return sequences.decode_mask(self.key, sequences.MASK_AFTER, self.mask_after_png, self.meta)

    def change(self) -> np.ndarray | None:
        """uint8 [H, W], 1 where a change was found; None where none was, or none was looked for.

        Never the truth, which `mask` gives. Raises DamagedShard, as `mask` does.
        """
        if self.change_png is None:
            return None
        height, width = self.meta.get("height"), self.meta.get("width")
        return changes.decode_mask(self.change_png, height, width, self.key)


def encode(
    sequence: FrameSequence,
    tokens: np.ndarray,
    scores: np.ndarray,
    image_frames: list[int],
    *,
    quality: int,
    processing_meta: Mapping[str, Any],
    features: Features | None = None,
) -> dict[str, bytes]:
    """A sample's members by extension, in the order in which they are stored.

    Args:
        image_frames: Frames whose images are stored.
        processing_meta: Interpolator, scorer, tokenizer, keyframes.
    """
    frames = sequence.frames
    count, height, width = frames.shape[:3]
    assert tokens.shape[0] == count
    assert scores.shape[::2] == (2, count), scores.shape
    mask_meta, mask_files = sequences.encode_masks(sequence)
    meta = {
        **pair_meta(sequence.pair),
        "frames": count,
        "height": height,
        "width": width,
        **processing_meta,
        **mask_meta,
        **sequences.registration_meta(sequence),
    }
    if features is not None:
        meta["features"] = features.meta()
    members = {
        "json": json.dumps(meta, sort_keys=True, ensure_ascii=False).encode(),
        "tokens.npy": _npy(tokens.astype(np.int16)),
        "scores.npy": _npy(scores.astype(np.float32)),
    }
    if features is not None:
        members["features.npy"] = _npy(features.values)
        if features.mirrored is not None:
            members["mirrored.npy"] = _npy(features.mirrored)
    members |= mask_files
    for frame in image_frames:
        members[f"f{frame:02d}.jpg"] = images.encode_image(frames[frame], "jpg", quality)
    return members


def ordered(extensions: Iterable[str]) -> list[str]:
    """Extensions of members in the order in which they are stored; unknown ones are left out."""
    present = set(extensions)
    pictures = sorted(name for name in present if re.fullmatch(r"f\d\d\.jpg", name))
    return [*(name for name in MEMBERS if name in present), *pictures]


def decode(key: str, members: Mapping[str, bytes]) -> TrainingSample:
    """A sample from its members.

    Raises:
        DamagedShard: For any that does not hold what it should.
    """
    if "tokens.npy" not in members and "f01.png" in members:
        raise tar.DamagedShard(f"{key}: a sequence of `cc-prep interpolate`, not yet of `build`")
    try:
        meta = strict_json.loads(members["json"])
        frames = meta["frames"]
        tokens = npy.read_as(members["tokens.npy"], "tokens.npy", (np.int16,), 3)
        scores = npy.read_as(members["scores.npy"], "scores.npy", (np.float32,), 3)
        features = _features(meta, members)
    except (KeyError, ValueError, TypeError, EOFError, RecursionError) as error:
        raise tar.DamagedShard(f"{key}: {type(error).__name__}: {error}") from None
    if len(tokens) != frames:
        raise tar.DamagedShard(f"{key}: tokens are {tokens.shape} for {frames} frames")
    if scores.shape[::2] != (2, frames):
        raise tar.DamagedShard(f"{key}: scores are {scores.shape} for {frames} frames")
    if not are_scores(scores):
        raise tar.DamagedShard(f"{key}: a score is no finite number")
    pictures = {
        number: data
        for name, data in members.items()
        if (number := number_of("f", name)) is not None
    }
    sequences.check_masks(key, meta, members)
    return TrainingSample(
        key,
        meta,
        tokens,
        scores,
        pictures,
        features=features,
        mask_png=members.get(sequences.MASK),
        mask_before_png=members.get(sequences.MASK_BEFORE),
        mask_after_png=members.get(sequences.MASK_AFTER),
        change_png=members.get(changes.MASK),
    )


def read(path: str) -> Iterator[TrainingSample]:
    """The samples of a shard, one in memory at a time. Raises DamagedShard, which names it."""
    return tar.decoded(path, decode)


class IndexingWriter:
    """Adds samples to a shard and notes their rows of the index; made by `write_shard`."""

    def __init__(self, writer: tar.ShardWriter) -> None:
        self.writer = writer
        self.metas: dict[str, dict[str, Any]] = {}

    def add(self, key: str, members: Mapping[str, bytes]) -> None:
        """A sample: its members by extension, `json` first."""
        assert next(iter(members)) == "json"
        self.writer.add(key, members)
        self.metas[key] = index_meta(json.loads(members["json"]))


@contextmanager
def write_shard(path: str) -> Iterator[tuple[IndexingWriter, tar.Written]]:
    """A shard that appears under its name only when complete.

    The second value is filled in when the block ends, with the shard's rows of the index.
    """
    with tar.write_shard(path) as (writer, written):
        indexing = IndexingWriter(writer)
        yield indexing, written
    written.index = [
        {
            "key": key,
            "offset": offset,
            "bytes": size,
            "crc32c": written.checksums[key],
            **indexing.metas[key],
        }
        for key, (offset, size) in written.spans.items()
    ]


FORMAT = ShardFormat(
    "cc-training-shards", "shards", "tar", write_shard, tar.read_shard, indexed=True
)


def index_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the index holds of a sample's JSON; None for what that does not say.

    Raises:
        ValueError: For a value of another type than the index's.
    """
    row = {}
    for name, kind in INDEX_META:
        value = meta.get(name)
        if kind == pa.string():
            is_valid = value is None or isinstance(value, str)
        elif kind == pa.int32():
            is_valid = value is None or (type(value) is int and 0 <= value < 2**31)
        else:
            value = [] if value is None else value
            is_valid = isinstance(value, list) and all(isinstance(one, str) for one in value)
        if not is_valid:
            raise ValueError(f"{name} in its .json is {str(value)[:40]!r}")
        row[name] = value
    return row


def check_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError for what are no rows of the index, without the shard, as `write_shard`
    gives them.
    """
    names = set(INDEX_SCHEMA.names) - {"shard"}
    for row in rows:
        numbers = [row.get(name) for name in ("offset", "bytes", "crc32c")]
        are_counts = all(type(number) is int and number >= 0 for number in numbers)
        if row.keys() != names or not isinstance(row["key"], str) or not are_counts:
            raise ValueError(f"{str(row)[:40]} is no row of {INDEX}")
        index_meta(row)


def write_index(folder: str, shards: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Writes the index from the rows of each shard by its name."""
    rows = [
        {**row, "shard": shard}
        for shard, shard_rows in sorted(shards.items())
        for row in sorted(shard_rows, key=lambda row: row["offset"])
    ]
    tables.write_rows(storage.join(folder, INDEX), rows, INDEX_SCHEMA)


def read_index(folder: str) -> list[dict[str, Any]]:
    """The rows of the index. Raises FileNotFoundError, and DamagedShard for no such table."""
    data = storage.read_bytes(storage.join(folder, INDEX))
    return tables.read_rows(data, INDEX_SCHEMA, INDEX)


def lookup(folder: str, key: str) -> TrainingSample | None:
    """One sample by its key, through the index; None if it is not there. Raises DamagedShard."""
    for row in read_index(folder):
        if row["key"] == key:
            return read_row(folder, row)
    return None


def read_row(folder: str, row: Mapping[str, Any]) -> TrainingSample:
    """The sample of a row of the folder's index. Raises DamagedShard and FileNotFoundError."""
    path = storage.join(folder, FORMAT.file(row["shard"]))
    return read_at(path, row["key"], row["offset"], row["bytes"], row["crc32c"])


def read_at(
    path: str, key: str, offset: int, size: int, checksum: int | None = None
) -> TrainingSample:
    """The sample at a range of bytes of a shard.

    Raises DamagedShard and FileNotFoundError.

    Args:
        checksum: The CRC-32C that these bytes must have; None where it is not known, or not asked
            for.
    """
    data = storage.read_range(path, offset, size)
    if len(data) != size:
        raise tar.DamagedShard(f"{path}: ends inside {key}")
    if checksum is not None and tar.checksum(data) != checksum:
        raise tar.DamagedShard(f"{path}: the bytes of {key} are not those that were written")
    samples = dict(tar.read_part(data, f"{path}[{key}]"))
    if samples.keys() != {key}:
        raise tar.DamagedShard(f"{path}: {key} is not where the index says")
    try:
        return decode(key, samples[key])
    except tar.DamagedShard as error:
        raise tar.DamagedShard(f"{path}: {error}") from None


def _features(meta: Mapping[str, Any], members: Mapping[str, bytes]) -> Features | None:
    """The features that JSON and member tell of together. Raises ValueError and KeyError."""
    description = meta.get("features")
    if description is None and "features.npy" not in members:
        return None
    if not isinstance(description, dict) or "features.npy" not in members:
        raise ValueError("features need an entry in the .json and a .features.npy; one is missing")
    backbone, sha256, frames = description["backbone"], description["sha256"], description["frames"]
    if not isinstance(backbone, str) or not isinstance(sha256, str):
        raise ValueError("features name no backbone")
    numbers = isinstance(frames, list) and all(type(frame) is int for frame in frames)
    if not numbers or frames != sorted(set(frames)):
        raise ValueError(f"features are of the frames {str(frames)[:40]}")
    if not frames or frames[0] < 0 or frames[-1] >= meta["frames"]:
        raise ValueError(f"features of the frames {str(frames)[:40]} of {meta['frames']}")
    values = npy.read_as(members["features.npy"], "features.npy", (np.float16, np.float32), 4)
    if not _is_finite(values):
        raise ValueError("a feature is no finite number")
    if len(values) != len(frames) or not values.size:
        raise ValueError(f"features are {values.shape} for {len(frames)} frames")
    stated = description.get("preprocessing")
    preprocessing = None if stated is None else Preprocessing.model_validate(stated)
    if "mirrored.npy" not in members:
        return Features(backbone, sha256, tuple(frames), values, None, preprocessing)
    mirrored = npy.read_as(members["mirrored.npy"], "mirrored.npy", (values.dtype.type,), 4)
    if mirrored.shape != values.shape:
        raise ValueError(f"mirrored features are {mirrored.shape}, not {values.shape}")
    if not _is_finite(mirrored):
        raise ValueError("a mirrored feature is no finite number")
    return Features(backbone, sha256, tuple(frames), values, mirrored, preprocessing)


def _is_finite(values: np.ndarray) -> bool:
    """Whether no value of a float16 or float32 array is infinite or NaN.

    Those are the values with all bits of the exponent set, which are the bits of infinity. On
    float16 `np.isfinite` takes eight times as long.
    """
    kind = f"u{values.itemsize}"
    exponent = np.array(np.inf, values.dtype).view(kind)
    return not ((values.view(kind) & exponent) == exponent).any()


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return buffer.getvalue()
