"""Keys of samples are safe tar members and never collide."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from cc_prep.records import CHANGE, ImagePair

IDS = st.text(max_size=300)


def pair(id: str, **more: object) -> ImagePair:
    return ImagePair("set", "train", id, CHANGE, "b.png", "a.png", **more)  # type: ignore[arg-type]


@given(IDS)
def test_keys_are_plain_and_short(id: str) -> None:
    """Keeps away: a dot that cuts a WebDataset key, a name too long for plain tar."""
    key = pair(id).key
    assert re.fullmatch(r"[A-Za-z0-9_-]+", key)
    assert len(key) + len(".mask.png") <= 100


@given(IDS, IDS)
def test_different_ids_have_different_keys(one: str, other: str) -> None:
    assert (pair(one).key == pair(other).key) == (one == other)


def test_plain_ids_stay_readable() -> None:
    assert pair("000123").key == "set-train-000123-change"


@given(IDS, st.lists(st.text()), st.lists(st.tuples(st.floats(0, 1), st.text())))
def test_survives_json(id: str, captions: list[str], truth: list[tuple[float, str]]) -> None:
    """Keeps away: a pair that changes on its way to a worker."""
    before = pair(id, captions=tuple(captions), truth=tuple(truth))
    after = ImagePair.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.digest() == before.digest()
