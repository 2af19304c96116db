"""Sequence shards: `sequences/<split>-000000.tar`, a sample a pair.

<key>.json      ids, kind, change type, captions, facts, sizes, interpolator
<key>.f00.png … frames, before first and after last (png, jpg or webp)
<key>.t01.png … true frames at the same times, where the data set has them
<key>.mask.png  class ids of where something changed, where the data set has it
<key>.mask_before.png, .mask_after.png   what vanished, what appeared, where it tells them apart
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cc_prep import strict_json
from cc_prep.formats import tar
from cc_prep.formats.tar import ShardFormat
from cc_prep.manifest import MAX_CLASSES
from cc_prep.media import images
from cc_prep.media.masks import Masks
from cc_prep.records import CHANGE_CLASS, FrameScores, FrameSequence, ImagePair
from cc_prep.redaction import without_credentials

FORMAT = ShardFormat("cc-sequences", "sequences", "tar", tar.write_shard, tar.read_shard)
PAIR_FIELDS = (
    "dataset",
    "split",
    "id",
    "image_id",
    "kind",
    "change_type",
    "before",
    "after",
    "captions",
    "facts",
)
GEOREFERENCE = "georeference"  # a key of tiles of rasters alone
REGISTRATION = "registration"  # a key of registered pairs alone
CODECS = ("png", "jpg", "webp")
FRAME_MEMBER = re.compile(rf"(?P<kind>[ft])(?P<number>[0-9]{{2}})\.({'|'.join(CODECS)})")
# Of the masks, in training shards too. Each is a grey PNG of class ids in the size of the frames:
# 0 unchanged, 1 … K the classes that the JSON names under `mask_classes`, a key that is there only
# with a mask. `mask` is the union of the other two.
MASK, MASK_BEFORE, MASK_AFTER = MASKS = ("mask.png", "mask_before.png", "mask_after.png")
MASK_CLASSES = "mask_classes"


@dataclass(frozen=True)
class StoredSequence:
    """A sample of a shard: what the JSON says, its images still encoded, its scores if read too."""

    key: str
    meta: dict[str, Any]
    members: dict[str, bytes]
    scores: FrameScores | None = None

    @property
    def codec(self) -> str:
        return str(self.meta["codec"])

    @property
    def split(self) -> str:
        return str(self.meta.get("split"))

    @property
    def id(self) -> str:
        return str(self.meta.get("id"))

    @property
    def kind(self) -> str:
        return str(self.meta.get("kind"))

    def pair(self) -> ImagePair:
        """The pair as it was read, but for its truth and masks. Raises DamagedShard."""
        try:
            fields = {name: self.meta[name] for name in PAIR_FIELDS}
            classes = self.meta.get(MASK_CLASSES, CHANGE_CLASS)
            masks = {"mask_values": (), "mask_classes": classes, "land_cover": False}
            place = {GEOREFERENCE: self.meta.get(GEOREFERENCE)}
            return ImagePair.from_json({**fields, **masks, **place, "truth": ()})
        except (KeyError, TypeError, ValueError):
            raise tar.DamagedShard(f"{self.key}: its .json does not describe a pair") from None

    def frames(self) -> np.ndarray:
        """uint8 [F, H, W, 3] RGB. Raises DamagedShard."""
        names = [f"f{i:02d}.{self.codec}" for i in range(self.meta["frames"])]
        return np.stack([self._image(name) for name in names])

    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Before and after alone, uint8 [H, W, 3] each. Raises DamagedShard."""
        before, after = (
            self._image(f"f{i:02d}.{self.codec}") for i in (0, self.meta["frames"] - 1)
        )
        return before, after

    def truth(self) -> dict[int, np.ndarray]:
        """True frames uint8 [H, W, 3] by frame number. Raises DamagedShard."""
        numbers = ((number_of("t", name), name) for name in self.members)
        return {number: self._image(name) for number, name in numbers if number is not None}

    def masks(self) -> Masks:
        """Class ids uint8 [H, W] of the union and the two sides. Raises DamagedShard."""
        return Masks(
            *(decode_mask(self.key, name, self.members.get(name), self.meta) for name in MASKS)
        )

    def _image(self, name: str) -> np.ndarray:
        if name not in self.members:
            raise tar.DamagedShard(f"{self.key}: no member {name}")
        image = images.decode_stored(self.members[name])
        if image is None:
            raise tar.DamagedShard(f"{self.key}.{name}: no image")
        return image


def number_of(kind: str, name: str) -> int | None:
    """The frame's number in a member's name such as `f08.png`; None for other members.

    Args:
        kind: `f` for frames, `t` for true frames.
    """
    matched = FRAME_MEMBER.fullmatch(name)
    return int(matched["number"]) if matched and matched["kind"] == kind else None


def encode(
    sequence: FrameSequence,
    codec: str,
    quality: int,
    interpolator: dict[str, Any],
    threads: int = 1,
) -> dict[str, bytes]:
    """A sample's members by extension, in the order in which they are stored.

    Args:
        threads: How many frames are encoded at a time.
    """
    pair, frames = sequence.pair, sequence.frames
    mask_meta, mask_files = encode_masks(sequence)
    meta = {
        **pair_meta(pair),
        "frames": len(frames),
        "height": frames.shape[1],
        "width": frames.shape[2],
        "codec": codec,
        "interpolator": interpolator,
        **mask_meta,
        **registration_meta(sequence),
    }
    members = {"json": json.dumps(meta, sort_keys=True, ensure_ascii=False).encode()}
    with ThreadPoolExecutor(threads) as pool:
        encoded_frames = pool.map(
            partial(images.encode_image, codec=codec, quality=quality), frames
        )
        members |= {f"f{i:02d}.{codec}": data for i, data in enumerate(encoded_frames)}
    for i, frame in sorted(sequence.truth.items()):
        members[f"t{i:02d}.png"] = images.encode_image(frame, "png", quality)
    return members | mask_files


def read(path: str) -> Iterator[StoredSequence]:
    """The samples of a shard, one in memory at a time. Raises DamagedShard."""
    return tar.decoded(path, decode)


def decode(key: str, members: Mapping[str, bytes]) -> StoredSequence:
    """A sample from its members.

    Raises:
        DamagedShard: Where its JSON does not describe one.
    """
    files = dict(members)
    try:
        meta = strict_json.loads(files.pop("json"))
        count = meta["frames"]
        is_known_codec = meta["codec"] in CODECS
    except (KeyError, ValueError, TypeError, RecursionError):
        raise tar.DamagedShard(f"{key} has no usable .json") from None
    if not is_known_codec or type(count) is not int or not 2 <= count <= 99:
        raise tar.DamagedShard(f"{key}: {count!r} frames of codec {meta['codec']!r}")
    check_masks(key, meta, files)
    return StoredSequence(key, meta, files)


def pair_meta(pair: ImagePair) -> dict[str, Any]:
    """What a sample's JSON says of its pair: key, PAIR_FIELDS and place, without credentials."""
    before, after = map(without_credentials, (pair.before, pair.after))
    record = {**pair.to_json(), "before": before, "after": after}
    meta = {"key": pair.key, **{name: record[name] for name in PAIR_FIELDS}}
    return meta if pair.georeference is None else {**meta, GEOREFERENCE: pair.georeference}


def registration_meta(sequence: FrameSequence) -> dict[str, Any]:
    """What the JSON says of a pair that was registered."""
    return {} if sequence.registration is None else {REGISTRATION: sequence.registration}


def encode_masks(sequence: FrameSequence) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What the JSON says of a sequence's masks, and their members; nothing without a union."""
    if sequence.mask is None:
        assert sequence.mask_before is sequence.mask_after is None
        return {}, {}
    classes = sequence.pair.mask_classes
    members = {}
    for name, mask in zip(
        MASKS, (sequence.mask, sequence.mask_before, sequence.mask_after), strict=True
    ):
        if mask is not None:
            assert mask.shape == sequence.frames.shape[1:3], mask.shape
            assert mask.max() <= len(classes), f"class {mask.max()} of {classes}"
            members[name] = images.encode_image(mask, "png", 0)
    return {MASK_CLASSES: list(classes)}, members


def check_masks(key: str, meta: Mapping[str, Any], members: Mapping[str, bytes]) -> None:
    """Raises DamagedShard where JSON and members do not name masks together."""
    classes = meta.get(MASK_CLASSES)
    if (classes is not None) != (MASK in members):
        raise tar.DamagedShard(f"{key}: {MASK_CLASSES} without {MASK}, or the reverse")
    if classes is None:
        if MASK_BEFORE in members or MASK_AFTER in members:
            raise tar.DamagedShard(f"{key}: a mask of one side without {MASK}")
        return
    is_list = isinstance(classes, list) and all(isinstance(one, str) for one in classes)
    if not is_list or not 1 <= len(classes) <= MAX_CLASSES:
        raise tar.DamagedShard(f"{key}: {MASK_CLASSES} in its .json is {str(classes)[:40]!r}")


def decode_mask(
    key: str, name: str, data: bytes | None, meta: Mapping[str, Any]
) -> np.ndarray | None:
    """Class ids uint8 [H, W] of a member; None without one.

    Raises:
        DamagedShard: For one that is no grey image of the frames' size, or has a class that the
            JSON does not name.
    """
    if data is None:
        return None
    pixels = images.decode_stored(data)
    if pixels is None:
        raise tar.DamagedShard(f"{key}.{name}: no image")
    height, width = meta.get("height"), meta.get("width")
    if pixels.shape[:2] != (height, width):
        size = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise tar.DamagedShard(f"{key}.{name}: {size}, not {width}×{height}")
    ids = np.ascontiguousarray(pixels[..., 0])
    count = len(meta[MASK_CLASSES])
    if ids.max() > count or (pixels != pixels[..., :1]).any():
        raise tar.DamagedShard(f"{key}.{name}: other values than the class ids 0 to {count}")
    return ids
