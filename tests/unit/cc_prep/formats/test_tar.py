"""Kinds of shards. Tar shards: the same samples give the same bytes, and damage is named.

See tests/faults too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
from collections.abc import Callable
from contextlib import nullcontext as does_not_raise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cc_prep.formats import (
    captions,
    changes,
    entities,
    region_features,
    scores,
    sequences,
    tar,
    training_shards,
)
from cc_prep.formats.tar import DamagedShard, Written, read_shard, write_shard

KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,60}", fullmatch=True)
MEMBERS = st.dictionaries(
    st.sampled_from(["json", "f00.png", "f01.png", "mask.png"]),
    st.binary(max_size=2000),
    min_size=1,
)
SAMPLES = st.dictionaries(KEYS, MEMBERS, max_size=6)


def write(path: Path, samples: dict[str, dict[str, bytes]]) -> Written:
    with write_shard(str(path)) as (writer, written):
        for key, members in samples.items():
            writer.add(key, members)
    return written


@given(SAMPLES)
@settings(max_examples=60)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, samples: dict) -> None:
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    written = write(path, samples)
    assert dict(read_shard(str(path))) == samples
    data = path.read_bytes()
    assert (written.samples, written.bytes) == (len(samples), len(data))
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    assert write(path, samples) == written


@given(st.binary(max_size=3000), st.integers(0, 10**6), st.integers(0, 255))
@settings(max_examples=150)
def test_damage_is_an_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, tail: bytes, at: int, value: int
) -> None:
    """Keeps away: any other exception than ours, whatever the bytes."""
    path = tmp_path_factory.mktemp("tar") / "a.tar"
    write(path, {"one": {"json": b"{}", "f00.png": b"x" * 700}, "two": {"json": b"[]"}})
    data = bytearray(path.read_bytes())
    data[at % len(data)] = value
    for damaged in (bytes(data), tail, bytes(data)[: at % len(data)] + tail):
        path.write_bytes(damaged)
        with contextlib.suppress(DamagedShard):
            list(read_shard(str(path)))


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize("damage", [cut, lambda data: data[:700]])
def test_truncated(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "a.tar"
    write(path, {f"k{i}": {"json": b"z" * 900} for i in range(9)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedShard):
        list(read_shard(str(path)))


def test_cut_at_any_block(tmp_path: Path) -> None:
    """Keeps away: the samples behind a cut, lost without a word. Copies stop at whole blocks."""
    path = tmp_path / "a.tar"
    write(path, {f"k{i}": {"json": b"{}", "f00.png": b"z" * 900} for i in range(3)})
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512  # of the last member
    assert len(whole) >= end + 1024
    for size in range(512, end + 1024, 512):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedShard):
            list(read_shard(str(path)))
    path.write_bytes(whole[: end + 1024])
    assert len(list(read_shard(str(path)))) == 3


@pytest.mark.parametrize("count", [3, 40])
def test_a_lost_header_is_no_end(tmp_path: Path, count: int) -> None:
    """Keeps away: the samples behind a hole of zeros, or of a second tar, lost without a word."""
    path = tmp_path / "a.tar"
    write(path, {f"k{i:02d}": {"json": b"{}", "f00.png": b"z" * 900} for i in range(count)})
    whole = path.read_bytes()
    hole = whole.index(b"k01.json")
    path.write_bytes(whole[:hole] + bytes(512) + whole[hole + 512 :])
    with pytest.raises(DamagedShard, match="behind its end"):
        list(read_shard(str(path)))
    path.write_bytes(whole + whole)
    with pytest.raises(DamagedShard, match="behind its end"):
        list(read_shard(str(path)))


def headers(data: bytes) -> list[int]:
    with tarfile.open(fileobj=io.BytesIO(data)) as opened:
        return [member.offset for member in opened]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(read_shard(path)),
        lambda path: list(tar.read_members(io.BytesIO(Path(path).read_bytes()), path)),
        tar.spans,
    ],
    ids=["shard", "members", "spans"],
)
def test_a_damaged_header_is_no_end(tmp_path: Path, read: Callable[[str], object]) -> None:
    """Keeps away: the members behind a flipped bit, lost without a word by Python's tar reader."""
    path = tmp_path / "a.tar"
    write(path, {f"k{i}": {"json": b"{}", "f00.png": b"z" * 900} for i in range(2)})
    whole = path.read_bytes()
    for offset in headers(whole):
        path.write_bytes(flipped(whole, offset + 5))
        with pytest.raises(DamagedShard, match=r"a\.tar: the header of a member is damaged"):
            read(str(path))


@pytest.mark.parametrize(
    ("left_out", "more", "message"),
    [(0, b"", None), (1, b"", "is cut short"), (0, bytes(99) + b"x", "goes on behind its end")],
)
def test_zeros_alone_stand_behind_the_last_member(
    left_out: int, more: bytes, message: str | None
) -> None:
    """Keeps away: a cut tar of which a reader says that it is whole."""
    data = b"z" * 512 + bytes(1024 - left_out) + more
    expected = pytest.raises(DamagedShard, match=f"a: {message}") if message else does_not_raise()
    with expected:
        tar.check_end(io.BytesIO(data), 512, "a")


def test_a_part_holds_whole_samples_and_nothing_else(tmp_path: Path) -> None:
    """Keeps away: a sample without its last members, where zeros took the place of a header."""
    path = tmp_path / "a.tar"
    samples = {"k": {"json": b"{}", "f00.png": b"z" * 900}}
    offset, size = write(path, samples).spans["k"]
    part = path.read_bytes()[offset : offset + size]
    assert dict(tar.read_part(part, "a")) == samples
    hole = headers(path.read_bytes())[1]
    with pytest.raises(DamagedShard, match="a: 1,536 bytes belong to no member"):
        dict(tar.read_part(part[:hole] + bytes(len(part) - hole), "a"))


def test_bad_keys_never_get_in(tmp_path: Path) -> None:
    for key in ("a.b", "a/b", ""):
        with pytest.raises(AssertionError), write_shard(str(tmp_path / "a.tar")) as (writer, _):
            writer.add(key, {"json": b""})
    assert not (tmp_path / "a.tar").exists()


def test_members_say_nothing_of_who_wrote_them_when(tmp_path: Path) -> None:
    """Keeps away: shards whose bytes differ between two users, hosts or days."""
    write(tmp_path / "a.tar", {"k": {"json": b"{}", "f00.png": b"x"}})
    with tarfile.open(tmp_path / "a.tar") as opened:
        for member in opened:
            assert (member.mode, member.mtime) == (0o644, 0)
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "", "")


@pytest.mark.parametrize(
    ("name", "most"), [("k.json", tar.MAX_JSON_BYTES), ("k.f00.png", tar.MAX_MEMBER_BYTES)]
)
def test_declared_sizes_are_bounded(name: str, most: int) -> None:
    """Keeps away: a header of a stranger that makes a reader ask for gigabytes of JSON."""
    member = tarfile.TarInfo(name)
    member.size = most
    assert tar.parts_of(member, "a.tar") == tuple(name.split(".", 1))
    member.size = most + 1
    with pytest.raises(DamagedShard, match=f"declares {most + 1:,} bytes"):
        tar.parts_of(member, "a.tar")
    assert tar.MAX_JSON_BYTES == 16 * 2**20 < tar.MAX_MEMBER_BYTES == 2**30


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.json", "b.json", "a.f00.png"], "the members of a are not adjacent"),
        (["a.json", "b.json", "a.json"], "the members of a are not adjacent"),
        (["a.json", "a.json"], "a.json twice"),
        (["a"], "not key.extension"),
        (["a/b.json"], "not key.extension"),
    ],
)
def test_what_breaks_the_convention_is_named(
    tmp_path: Path, names: list[str], message: str
) -> None:
    """Keeps away: a sample that silently replaces another one."""
    with tarfile.open(tmp_path / "a.tar", "w") as opened:
        for name in names:
            opened.addfile(tarfile.TarInfo(name))
    with pytest.raises(DamagedShard, match=message):
        list(read_shard(str(tmp_path / "a.tar")))


def test_offsets_point_at_headers(tmp_path: Path) -> None:
    """Keeps away: an index that points a block before or after its sample."""
    samples = {f"k{i}": {"json": b"{}", "f00.png": b"x" * 700 * i} for i in range(4)}
    written = write(tmp_path / "a.tar", samples)
    with tarfile.open(tmp_path / "a.tar") as opened:
        starts = {m.name.partition(".")[0]: m.offset for m in opened if m.name.endswith("json")}
    assert {key: offset for key, (offset, _) in written.spans.items()} == starts
    path = str(tmp_path / "a.tar")
    assert tar.spans(path) == written.spans
    assert tar.checksums(path, written.spans) == written.checksums


def test_a_tar_without_members(tmp_path: Path) -> None:
    """Keeps away: a shard behind leading zeros that is read as whole and empty."""
    path = tmp_path / "a.tar"
    path.write_bytes(bytes(tar.END_MARK))
    assert list(read_shard(str(path))) == []
    write(path, {"k0": {"json": b"{}"}})
    path.write_bytes(bytes(tar.END_MARK) + path.read_bytes())
    with pytest.raises(DamagedShard, match="behind its end"):
        list(read_shard(str(path)))


def test_nothing_is_written_before_the_end(tmp_path: Path) -> None:
    """Keeps away: a count of samples that is off by one where a job looks before the end."""
    with write_shard(str(tmp_path / "a.tar")) as (writer, written):
        writer.add("k", {"json": b""})
        assert (written.samples, written.bytes, written.sha256) == (0, 0, "")
    assert written.samples == 1


def test_a_damaged_sample_is_named_with_its_shard(tmp_path: Path) -> None:
    """Keeps away: a key, without the one file of hundreds that it is in."""
    path = str(tmp_path / "train-000007.tar")
    with tar.write_shard(path) as (writer, _):
        writer.add("k", {"json": b"{}"})
    with pytest.raises(tar.DamagedShard, match=r"train-000007\.tar: k: KeyError: 'frames'"):
        list(training_shards.read(path))


def test_versions_are_those_of_what_is_written() -> None:
    """Keeps away: a version that changes without the format, so that every folder is refused.

    Whoever changes what a format holds raises its version here and there.
    """
    of_changes = {"cc-changes": 1, "cc-region-features": 1, "cc-entities": 1}
    of_changes["cc-captions"] = 1
    of_frames = {"cc-sequences": 4, "cc-scores": 2, "cc-training-shards": 6}
    assert of_frames | of_changes == tar.VERSIONS
    formats = (
        *(sequences.FORMAT, scores.FORMAT, training_shards.FORMAT),
        *(changes.FORMAT, region_features.FORMAT, entities.FORMAT, captions.FORMAT),
    )
    assert {one.name: one.version for one in formats} == tar.VERSIONS


def test_only_training_shards_have_an_index() -> None:
    formats = (sequences.FORMAT, scores.FORMAT, training_shards.FORMAT)
    assert [one.name for one in formats if one.indexed] == ["cc-training-shards"]
    files = [one.file("train-000001") for one in formats]
    assert files == ["train-000001.tar", "train-000001.parquet", "train-000001.tar"]
