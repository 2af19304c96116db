"""Tar shards: the same samples give the same bytes, and damage is named. See tests/faults too."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.formats.tar import DamagedShard, Written, read_shard, write_shard

KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,60}", fullmatch=True)
MEMBERS = st.dictionaries(
    st.sampled_from(["json", "f00.png", "f01.png", "mask.png"]),
    st.binary(max_size=2000),
    min_size=1,
)
SAMPLES = st.dictionaries(KEYS, MEMBERS, max_size=6)


def write(place: Path, samples: dict[str, dict[str, bytes]]) -> Written:
    with write_shard(str(place)) as (writer, written):
        for key, members in samples.items():
            writer.add(key, members)
    return written


@given(SAMPLES)
@settings(max_examples=60)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, samples: dict) -> None:
    place = tmp_path_factory.mktemp("tar") / "a.tar"
    written = write(place, samples)
    assert dict(read_shard(str(place))) == samples
    data = place.read_bytes()
    assert (written.samples, written.bytes) == (len(samples), len(data))
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    assert write(place, samples) == written


@given(st.binary(max_size=3000), st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=150)
def test_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, at: int, value: int
) -> None:
    """Keeps away: any other exception than ours, whatever the bytes."""
    place = tmp_path_factory.mktemp("tar") / "a.tar"
    write(place, {"one": {"json": b"{}", "f00.png": b"x" * 700}, "two": {"json": b"[]"}})
    data = bytearray(place.read_bytes())
    data[at % len(data)] = value
    for damaged in (bytes(data), tail, bytes(data)[: at % len(data)] + tail):
        place.write_bytes(damaged)
        with contextlib.suppress(DamagedShard):
            list(read_shard(str(place)))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [cut, lambda data: data[:700]])
def test_truncated(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    place = tmp_path / "a.tar"
    write(place, {f"k{i}": {"json": b"z" * 900} for i in range(9)})
    place.write_bytes(damage(place.read_bytes()))
    with pytest.raises(DamagedShard):
        list(read_shard(str(place)))


def test_bad_keys_never_get_in(tmp_path: Path) -> None:
    for key in ("a.b", "a/b", ""):
        with pytest.raises(AssertionError), write_shard(str(tmp_path / "a.tar")) as (writer, _):
            writer.add(key, {"json": b""})
    assert not (tmp_path / "a.tar").exists()
