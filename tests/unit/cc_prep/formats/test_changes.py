"""Found changes on disk: what was written comes back, and what does not fit is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cc_prep.formats import changes
from cc_prep.formats.changes import FoundChange, Region
from cc_prep.formats.tar import DamagedShard
from cc_prep.media import images

REGION = Region((2, 3, 9, 8), (5.5, 5.25), 30, 812.5, 0.75, 0.5, True)
IDS = {"key": "a-train-1-change", "split": "train", "id": "1", "kind": "change"}


def found_change() -> FoundChange:
    mask = np.zeros((20, 30), bool)
    mask[3:8, 2:9] = True
    return FoundChange(20, 30, "fill", (REGION,), mask)


def test_there_and_back() -> None:
    """Keeps away: a mask that is stored in other values, and a box whose numbers change places."""
    change = found_change()
    members = changes.encode(IDS, change)
    assert list(members) == ["regions.json", "change.png"]
    stored = changes.decode("a", members)
    assert stored.change.regions == (REGION,)
    assert stored.change.mask is not None
    assert np.array_equal(stored.change.mask, change.mask)
    assert (stored.kind, stored.meta["id"], stored.change.method) == ("change", "1", "fill")
    pixels = images.decode_stored(members["change.png"])
    assert pixels is not None
    assert sorted(np.unique(pixels)) == [0, 255]
    mask = changes.decode_mask(members["change.png"], 20, 30, "a")
    assert (mask.dtype, mask.max()) == (np.uint8, 1)


@pytest.mark.parametrize("capped", [False, True])
def test_nothing_found_has_no_mask(capped: bool) -> None:
    """Keeps away: an empty mask, which a trainer would pull its attention towards."""
    members = changes.encode(IDS, FoundChange(20, 30, "none", capped=capped))
    assert list(members) == ["regions.json"]
    change = changes.decode("a", members).change
    assert (change.regions, change.mask, change.capped) == ((), None, capped)


def with_meta(**values: Any) -> dict[str, bytes]:
    members = changes.encode(IDS, found_change())
    meta = {**json.loads(members["regions.json"]), **values}
    return {**members, "regions.json": json.dumps(meta).encode()}


def with_region(**values: Any) -> dict[str, bytes]:
    region = {**json.loads(json.dumps(REGION.to_json())), **values}
    return with_meta(regions=[region])


def png(pixels: np.ndarray) -> dict[str, bytes]:
    return {**with_meta(), "change.png": images.encode_image(pixels.astype(np.uint8), "png", 0)}


DAMAGED = {
    "no json": {"change.png": b""},
    "no list": with_meta(regions=3),
    "no sizes": with_meta(height=None),
    "a box outside": with_region(box=[2, 3, 31, 8]),
    "an empty box": with_region(box=[2, 3, 2, 8]),
    "three numbers": with_region(box=[2, 3, 9]),
    "a centre of words": with_region(centre=["a", 1]),
    "a surplus key": with_region(more=1),
    "a strength of None": with_region(strength=None),
    "kept is 1": with_region(kept=1),
    "no mask": {k: v for k, v in with_meta().items() if k != "change.png"},
    "a mask of no region": with_meta(regions=[]),
    "no image": {**with_meta(), "change.png": b"x"},
    "another size": png(np.zeros((20, 31))),
    "grey values": png(np.full((20, 30), 128)),
    "colours": png(np.dstack([np.full((20, 30), x) for x in (255, 0, 0)])),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str) -> None:
    """Keeps away: a shard of a stranger that ends a training with a traceback."""
    with pytest.raises(DamagedShard, match=r"^a"):
        changes.decode("a", DAMAGED[name])


@given(st.dictionaries(st.sampled_from(["regions.json", "change.png", "x"]), st.binary()))
def test_any_bytes_are_refused(members: dict[str, bytes]) -> None:
    """Keeps away: bytes that raise anything else than DamagedShard."""
    with pytest.raises(DamagedShard):
        changes.decode("a", members)
