"""Entries of training shards: what one reads, what it refuses, and when a shard is whole."""

from __future__ import annotations

import itertools
import json
import tarfile
from pathlib import Path

import pytest

from cc_prep.errors import UserError
from cc_prep.formats import tar, training_shards
from cc_prep.formats.tar import DamagedShard
from cc_train.data import shard_index
from cc_train.data.shard_index import Entry

BLOCK = tarfile.BLOCKSIZE


def shard(folder: Path, contents: list[bytes], name: str = "train-000000") -> Path:
    """A shard whose samples have a JSON of that content, and one frame; no index."""
    place = folder / f"{name}.tar"
    with tar.write_shard(str(place)) as (writer, _):
        for number, content in enumerate(contents):
            writer.add(f"k-{number}", {"json": content, "f00.jpg": b"x" * 700})
    return place


def test_the_json_is_read_alone(tmp_path: Path) -> None:
    texts = ["a", "b" * 600, "c" * 512]
    place = shard(tmp_path, [json.dumps({"captions": [text]}).encode() for text in texts])
    entries = shard_index.read([str(place)])
    seen: list[int] = []
    found = shard_index.metas(entries, seen.append)
    assert [meta["captions"] for meta in found] == [[text] for text in texts]
    assert seen == [1, 2, 3], "progress counts what is done"


@pytest.mark.parametrize("content", [b"[1]", b"{", b"", b"[" * 10**5, b'"text"'])
def test_a_json_that_is_no_object(tmp_path: Path, content: bytes) -> None:
    [entry] = shard_index.read([str(shard(tmp_path, [content]))])
    with pytest.raises(DamagedShard, match="k-0"):
        entry.meta()
    with pytest.raises(UserError, match="k-0"):
        shard_index.metas([entry])


def declaring(folder: Path, size: int) -> Entry:
    """An entry whose header declares a JSON of so many bytes."""
    header = tarfile.TarInfo("k-0.json")
    header.size = size
    (folder / "a.tar").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + b'{"a": 1}')
    return Entry("k-0", str(folder / "a.tar"), 0, 2 * BLOCK)


def test_declared_sizes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps away: a header of a stranger that makes the index ask for gigabytes."""
    monkeypatch.setattr(shard_index, "LARGEST_JSON", 8)
    assert declaring(tmp_path, 8).meta() == {"a": 1}
    with pytest.raises(DamagedShard, match="declares 9 bytes of JSON"):
        declaring(tmp_path, 9).meta()
    with pytest.raises(DamagedShard, match="declares -1 bytes of JSON"):
        declaring(tmp_path, -1).meta()
    with pytest.raises(DamagedShard, match="Expecting value"):
        declaring(tmp_path, 0).meta()


@pytest.mark.parametrize("missing", [1, BLOCK, 2 * BLOCK])
@pytest.mark.parametrize("index", [True, False])
def test_a_shard_without_its_whole_end(tmp_path: Path, missing: int, index: bool) -> None:
    """Keeps away: a copy that stopped in a shard's last bytes and is taken for whole."""
    place = tmp_path / "train-000000.tar"
    with tar.write_shard(str(place)) as (writer, written):
        writer.add("k-0", {"json": b"{}", "f00.jpg": b"x" * 700})
    if index:
        listed = {"train-000000": (written.offsets, written.bytes)}
        training_shards.write_index(str(tmp_path), listed)
    end = written.bytes if index else BLOCK * (2 + 1 + 2 + 2)
    place.write_bytes(place.read_bytes()[:end])
    assert len(shard_index.read([str(place)])) == 1
    place.write_bytes(place.read_bytes()[: end - missing])
    with pytest.raises(UserError, match="is cut short"):
        shard_index.read([str(place)])


def test_entries_of_tar_and_index_are_the_same(tmp_path: Path) -> None:
    place = tmp_path / "train-000000.tar"
    with tar.write_shard(str(place)) as (writer, written):
        for number in range(3):
            writer.add(f"k-{number}", {"json": b"{}", "f00.jpg": b"x" * 700 * number})
    scanned = shard_index.read([str(place)])
    training_shards.write_index(str(tmp_path), {"train-000000": (written.offsets, written.bytes)})
    indexed = shard_index.read([str(place)])
    assert [(e.key, e.offset) for e in scanned] == [(e.key, e.offset) for e in indexed]
    assert [e.bytes for e in scanned[:-1]] == [e.bytes for e in indexed[:-1]]
    assert all(one.offset + one.bytes == two.offset for one, two in itertools.pairwise(scanned))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a.f00.jpg", "a.json"], "comes before its .json"),
        (["a.json", "b.json", "a.f00.jpg"], "the key stands there twice"),
        (["a.json", "a.json"], "the key stands there twice"),
    ],
)
def test_what_breaks_the_convention(tmp_path: Path, names: list[str], said: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as opened:
        for name in names:
            opened.addfile(tarfile.TarInfo(name))
    with pytest.raises(UserError, match=said):
        shard_index.read([str(tmp_path / "a.tar")])


@pytest.mark.parametrize(("key", "id"), [("set-7-change", "set-7"), ("alone", "alone")])
def test_a_scenes_id_is_its_key_without_the_kind(key: str, id: str) -> None:
    assert Entry(key, "a.tar", 0, 0).id == id
