"""Found changes: `changes/<split>-000000.tar`, a sample a pair.

<key>.regions.json   ids, sizes, the segmenter, and a record of each region
<key>.change.png     255 where a change was found; not there where none was

They are estimates. What truly changed is the `.mask.png` of sequences and training shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from cc_prep import strict_json
from cc_prep.formats import tar
from cc_prep.formats.tar import ShardFormat
from cc_prep.media import images

FORMAT = ShardFormat("cc-changes", "changes", "tar", tar.write_shard, tar.read_shard)
JSON, MASK = "regions.json", "change.png"
MAX_REGIONS = 10_000  # regions of a pair


@dataclass(frozen=True)
class Region:
    """A place where the images differ.

    Attributes:
        box: x0, y0, x1, y1 in px, of the cluster; x1 and y1 are outside.
        centre: X, y.
        area: Px of its mask.
        strength: Summed difference of the cluster in levels of Lab.
        iou_before, iou_after: How well the segmenter's mask in each image fits the cluster.
        kept: Whether one of them fits well enough; else the filled cluster is the mask.
    """

    box: tuple[int, int, int, int]
    centre: tuple[float, float]
    area: int
    strength: float
    iou_before: float
    iou_after: float
    kept: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, height: int, width: int) -> Region:
        """Raises ValueError for a record that does not describe a place in the image."""
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or value.keys() != set(names):
            raise ValueError(f"a region is {', '.join(names)}")
        box, centre = value["box"], value["centre"]
        if not _are(box, 4, int) or not _are(centre, 2, int, float):
            raise ValueError(f"a region has the box {box!r} and the centre {centre!r}")
        x0, y0, x1, y1 = box
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise ValueError(f"the box {box} is outside {width}×{height}")
        numbers = [value[name] for name in names[2:6]]
        if not _are(numbers, 4, int, float) or type(value["kept"]) is not bool:
            raise ValueError(f"a region has the figures {numbers} and kept {value['kept']!r}")
        return cls(**{**value, "box": tuple(box), "centre": tuple(centre)})


@dataclass(frozen=True)
class FoundChange:
    """What was found in a pair of images.

    Attributes:
        method: The segmenter.
        mask: Bool [H, W]; None where nothing was found.
        capped: Whether so much differs that nothing was marked.
    """

    height: int
    width: int
    method: str
    regions: tuple[Region, ...] = ()
    mask: np.ndarray | None = None
    capped: bool = False


@dataclass(frozen=True)
class StoredChange:
    """A sample of a shard: what its JSON says, and the change.

    Attributes:
        mask_png: Still encoded.
    """

    key: str
    meta: dict[str, Any]
    change: FoundChange
    mask_png: bytes | None

    @property
    def kind(self) -> str:
        return str(self.meta.get("kind"))


def encode(ids: Mapping[str, str], change: FoundChange) -> dict[str, bytes]:
    """A sample's members by extension.

    Args:
        ids: What else its JSON says, such as its split.
    """
    meta = {
        **ids,
        "height": change.height,
        "width": change.width,
        "method": change.method,
        "capped": change.capped,
        "regions": [region.to_json() for region in change.regions],
    }
    members = {JSON: json.dumps(meta, sort_keys=True, ensure_ascii=False).encode()}
    if change.mask is not None:
        members[MASK] = images.encode_image(change.mask.astype(np.uint8) * 255, "png", 0)
    return members


def decode(key: str, members: Mapping[str, bytes]) -> StoredChange:
    """A sample from its members.

    Raises:
        DamagedShard: For any that is not what it should be.
    """
    try:
        meta = strict_json.loads(members[JSON])
        height, width, method, capped = (
            meta[name] for name in ("height", "width", "method", "capped")
        )
        if not _are([height, width], 2, int) or type(method) is not str or type(capped) is not bool:
            raise ValueError("it lacks sizes, method or capped")
        listed = meta["regions"]
        if not isinstance(listed, list) or len(listed) > MAX_REGIONS:
            raise ValueError("regions are no list, or too many")
        regions = tuple(Region.from_json(one, height, width) for one in listed)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise tar.DamagedShard(f"{key}.{JSON}: {error}") from None
    data = members.get(MASK)
    mask = None if data is None else decode_mask(data, height, width, key) > 0
    if bool(regions) != (mask is not None):
        raise tar.DamagedShard(f"{key}: {len(regions)} regions, and {MASK} does not fit that")
    change = FoundChange(height, width, method, regions, mask, capped)
    return StoredChange(key, meta, change, data)


def decode_mask(data: bytes, height: Any, width: Any, key: str) -> np.ndarray:
    """A `.change.png` as uint8 [H, W] of 0 and 1.

    Raises:
        DamagedShard: For one that is no image of that size, of 0 and 255 alone.
    """
    pixels = images.decode_stored(data)
    if pixels is None or pixels.shape[:2] != (height, width):
        raise tar.DamagedShard(f"{key}.{MASK}: no image of {width}×{height}")
    marked = pixels[..., 0] == 255
    if (pixels != marked[..., None] * np.uint8(255)).any():
        raise tar.DamagedShard(f"{key}.{MASK}: other values than 0 and 255")
    return marked.astype(np.uint8)


def read(path: str) -> Iterator[StoredChange]:
    """The samples of a shard, one in memory at a time. Raises DamagedShard."""
    return tar.decoded(path, decode)


def _are(values: Any, count: int, *types: type) -> bool:
    """Whether these are so many values, each of one of the types; a bool is no number."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(type(value) in types for value in values)
    )
